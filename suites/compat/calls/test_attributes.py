"""Attributes of DeepSpeed's engine and optimizer: scripts read them, and their assignments hold."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zerobench.compat.config.deepspeed_config import DeepSpeedZeroConfig, name_of_optimizer
from zerobench.compat.engine import entry
from zerobench.compat.launcher import runner
from zerobench.compat.profiling import timers
from zerobench.compat.runtime import config_functions, env_report, norms, parts, runtime_functions
from zerobench.engine.errors import ConfigError
from zerobench.ranks import Pool
from zerobench.suites.compat import loops
from zerobench.suites.compat.calls import attribute_loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


def test_what_was_given(pool: Pool) -> None:
    """The arguments of initialize(), names, and the optimizer inside the optimizer, at every stage."""
    ranks = pool.run(loops.at_every_stage, attribute_loops.what_was_given, world=_WORLD)
    assert ranks == [[[True] * 10] * 4] * _WORLD


def test_the_loss_scaler(pool: Pool) -> None:
    """Its state by DeepSpeed's names; a script may set the scale between steps."""
    text = "the loss scale was set within a step, whose gradients have another; set it after step()"
    expected = ([32.0, 2, 0, 2, 7, 2.0, 3, 2.0], 8.0, text)
    assert pool.run(loops.at_every_stage, attribute_loops.loss_scaler, world=_WORLD) == [[expected] * 4] * _WORLD


def test_overflow_before_the_step(pool: Pool) -> None:
    """has_overflow() agrees on all ranks between backward() and step(); the scaler is of DeepSpeed's classes."""
    expected = [[True, True, False], False, True, True, True, False, False, False]
    ranks = pool.run(loops.at_every_stage, attribute_loops.overflow_before_the_step, world=_WORLD)
    assert ranks == [[expected] * 4] * _WORLD


def test_what_is_refused(pool: Pool) -> None:
    """An attribute that the engine does not have is an error that says what to do."""
    [stages, *_] = pool.run(loops.at_every_stage, attribute_loops.refused, world=_WORLD)
    for files, times, sizes, step, flat, scale in stages:
        assert files.startswith("engine.checkpoint_engine is not offered: the engine writes its files itself; call")
        assert times == "engine.engine_timers is not offered: set wall_clock_breakdown, and read engine.timers"
        assert "keep the number of ranks in client_state" in sizes
        assert step.startswith("call engine.step()")
        assert "no flat buffers or buckets; read and set states by safe_get_full_fp32_param()" in flat
        assert scale == "optimizer.override_loss_scale is not offered: set cur_scale"


def test_counters(pool: Pool) -> None:
    """A script restores them; steps end at multiples of the micro-steps, as in DeepSpeed."""
    steps = [(11, 22, 176), (11, 23, 176), (12, 24, 192), (12, 25, 192)]
    for stages in pool.run(loops.at_every_stage, attribute_loops.counters, world=_WORLD):
        for skipped, *counted, boundary, error in stages:
            assert (skipped, counted, boundary) == (3, steps, False)
            assert error.startswith("micro_steps was set from 26 to 27 within a step of 2 micro-steps")


def test_older_arguments() -> None:
    """--deepscale_config is taken as --deepspeed_config; both are an error."""
    parser = entry.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepscale", "--deepscale_config", "a.json"])
    assert entry._config(args, None) == "a.json"
    assert (args.deepspeed_config, args.deepscale_config) == ("a.json", None)
    with pytest.raises(ConfigError, match="take --deepscale_config out"):
        entry._config(parser.parse_args(["--deepscale_config", "a", "--deepspeed_config", "b"]), None)


@pytest.mark.parametrize(("type_", "name"), [("AdamW", "adamw"), ("SGD", "SGD"), (None, None)])
def test_name_of_optimizer(type_: str | None, name: str | None) -> None:
    """DeepSpeed's own types are in lower case, torch's as they are spelled."""
    assert name_of_optimizer({"type": type_} if type_ else {}) == name


def test_a_section_of_its_own() -> None:
    """``DeepSpeedZeroConfig`` checks its keys as a configuration does, and has DeepSpeed's names and defaults."""
    made = DeepSpeedZeroConfig(stage=3, stage3_max_live_parameters=7, offload_optimizer={"device": "cpu"})
    assert (made.stage, made.max_live_parameters, made.offload_optimizer.device) == (3, 7, "cpu")
    assert (made.overlap_comm, DeepSpeedZeroConfig(stage=2).overlap_comm) == (True, False)
    assert (made.offload_param, made.reduce_scatter, made.round_robin_gradients) == (None, True, False)
    assert (made.sub_group_size, made.prefetch_bucket_size) == (1000000000, 50000000)
    for wrong in ({"stage": 7}, {"stage_": 3}):
        with pytest.raises(ValueError, match="stage"):
            DeepSpeedZeroConfig(**wrong)


def test_config_functions() -> None:
    """DeepSpeed's answers."""
    assert config_functions.get_scalar_param({"a": 1}, "a", 2) == 1
    assert config_functions.get_list_param({}, "a", [2]) == [2]
    with pytest.raises(ValueError, match=r"Duplicate keys in DeepSpeed config: \['a'\]"):
        json.loads('{"a": 1, "a": 2}', object_pairs_hook=config_functions.dict_raise_error_on_duplicate_keys)
    nested = {"a": 5000000, "b": [1, 2e9], "c": {"d": True, "e": "x"}}
    inner = '{\n        "d": true, \n        "e": "x"\n    }'
    expected = f'{{\n    "a": 5.000000e+06, \n    "b": [1, 2.000000e+09], \n    "c": {inner}\n}}'
    assert json.dumps(nested, cls=config_functions.ScientificNotationEncoder) == expected
    assert (repr(config_functions.pp_int(100000)), repr(config_functions.pp_int(5, "five"))) == ("100,000", "five")
    made = config_functions.DeepSpeedConfigObject()
    made.a = 5  # type: ignore[attr-defined]
    assert (repr(made), made.repr()) == ('{\n    "a": 5\n}', {"a": 5})


class _Section(config_functions.DeepSpeedConfigModel):
    x: int = 3


def test_config_model() -> None:
    """A section checks its types and names; ``auto`` counts as not given."""
    given: list[dict[str, Any]] = [{}, {"x": "4"}, {"x": "auto"}]
    assert [_Section(**each).x for each in given] == [3, 4, 3]
    assert config_functions.get_config_default(_Section, "x") == 3
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        _Section.model_validate({"z": 1})


_CALLS: list[tuple[Any, Any]] = [
    (lambda: parts.partition_uniform(10, 3), [0, 4, 7, 10]),
    (lambda: parts.partition_uniform(2, 4), [0, 1, 2, 2, 2]),
    (lambda: parts.prefix_sum_inc([3, 4, 5]), [3, 7, 12]),
    (lambda: runtime_functions.call_to_str("f", 1, "a", k=2), "f(1, 'a', k=2)"),
    (lambda: runtime_functions.get_only_unique_item([2, 2]), 2),
    (lambda: runtime_functions.get_tensor_bytes([torch.ones(3), {"a": torch.ones(2, dtype=torch.half)}, 5]), 16),
    (lambda: len(runtime_functions.filter_empty_parameters([torch.ones(0), torch.ones(2)])), 1),
    (lambda: runtime_functions.filter_empty_parameters([{"params": [torch.ones(0)]}]), []),
    (lambda: bool(norms.has_inf_or_nan(torch.tensor([1.0, float("inf")]))), True),
    (lambda: bool(norms.has_inf_or_nan(torch.ones(0))), False),
    (lambda: norms.get_global_norm([3.0, 4.0]), 5.0),
    (lambda: norms.get_global_norm([3.0, -1.0]), float("inf")),
    (lambda: norms.get_global_norm_of_tensors([torch.ones(4), torch.ones(5)]).item(), 3.0),
    (lambda: norms.get_global_norm_of_tensors([torch.tensor([float("inf")])]).item(), -1.0),
    (lambda: norms.get_weight_norm([torch.ones(4)]), 2.0),
    (lambda: timers.NoopTimer()("a").elapsed(), 0),
]


@pytest.mark.parametrize(("call", "expected"), _CALLS)
def test_small_functions(call: Any, expected: Any) -> None:
    """DeepSpeed's answers."""
    assert call() == expected


def test_clipping_of_tensors() -> None:
    """They are scaled to the norm; the one before is returned."""
    tensors = [torch.full((4,), 3.0)]
    assert norms.clip_tensors_by_global_norm(tensors, 1.0) == 6.0
    assert torch.linalg.vector_norm(tensors[0]).item() == pytest.approx(1.0)


def test_attributes_by_path() -> None:
    """A dotted name is read and set."""
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 3)))
    assert runtime_functions.recursive_getattr(net, "0.0.weight").shape == (3, 2)
    runtime_functions.recursive_setattr(net, "0.0", nn.Identity())
    assert isinstance(net.get_submodule("0.0"), nn.Identity)


def test_hosts(tmp_path: Path) -> None:
    """A script reads a hostfile and filters it."""
    file = tmp_path / "hostfile"
    assert runner.fetch_hostfile(file) is None
    file.write_text("worker-0 slots=4\n# c\n\nworker-1 slots=2\n")
    hosts = runner.fetch_hostfile(file)
    assert hosts == {"worker-0": 4, "worker-1": 2}
    included = runner.parse_inclusion_exclusion(hosts, "worker-0:0,2@worker-1", "")
    assert included == {"worker-0": [0, 2], "worker-1": [0, 1]}
    assert runner.encode_world_info({"worker-0": [0, 1]}) == "eyJ3b3JrZXItMCI6IFswLCAxXX0="


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """It names torch's version and says which engine runs."""
    env_report.main()
    printed = capsys.readouterr().out
    assert f"torch version .................... {torch.__version__}" in printed
    assert "zerobench's reference engine stands in for it" in printed
