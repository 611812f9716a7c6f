"""Calls and keys that few scripts have: each is right at every stage, or one clear error."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from zerobench.compat.activation import SITE
from zerobench.compat.checkpoint.zero_to_fp32 import convert_zero_checkpoint_to_state_dict
from zerobench.compat.config import resolve
from zerobench.compat.config.deepspeed_config import DeepSpeedConfig
from zerobench.compat.profiling import memory_estimates
from zerobench.compat.runtime.runtime_functions import move_to_device, set_random_seed
from zerobench.engine.errors import ConfigError
from zerobench.ranks import Pool
from zerobench.suites.compat import loops
from zerobench.suites.compat.calls import call_loops, model_loops
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


def test_coalesced(pool: Pool) -> None:
    """A block of coalesce_grad_reduction() is one step, with the bits of declared boundaries."""
    [[expected, *_], *_] = pool.run(loops.at_every_stage, call_loops.coalesced, False, world=_WORLD)
    for stages in pool.run(loops.at_every_stage, call_loops.coalesced, True, world=_WORLD):
        assert all(torch.equal(after, expected) for after in stages)


def test_autocast(pool: Pool) -> None:
    """Under torch_autocast all stages are one trajectory of fp32 parameters and bf16 outputs."""
    ranks = pool.run(loops.at_every_stage, call_loops.autocast, world=_WORLD)
    expected = ranks[0][0][0]
    for stages in ranks:
        assert all(torch.equal(after, expected) for after, _ in stages)
        assert all(seen == [torch.bfloat16, torch.float32] for _, seen in stages)


def test_autocast_of_the_caller(pool: Pool) -> None:
    """On the CPU it holds within the engine, as in DeepSpeed, and all stages are one trajectory."""
    ranks = pool.run(loops.at_every_stage, call_loops.outer_autocast, world=_WORLD)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][0][0]) and found == torch.bfloat16 for after, found in stages)


def test_reduced_by_the_caller(pool: Pool) -> None:
    """allreduce_gradients() in place of the reduction in backward() is the same step; without it a step is an error."""
    [[(expected, error), *_], *_] = pool.run(loops.at_every_stage, call_loops.reduced_by_the_caller, world=_WORLD)
    assert "the step has no allreduce_gradients(); call it before step()" in error
    for stages in pool.run(loops.at_every_stage, call_loops.reduced_by_the_caller, world=_WORLD):
        assert all(torch.equal(after, expected) for after, _ in stages)


def test_norm_and_samples(pool: Pool, tmp_path: Path) -> None:
    """The norm is a tensor, and a checkpoint brings the samples back."""
    ranks = pool.run(loops.at_every_stage, call_loops.norm_and_samples, str(tmp_path), world=_WORLD)
    assert ranks == [[ranks[0][0]] * 4] * _WORLD
    assert ranks[0][0][1] == [16, 16]


def test_groups_without_parameters(pool: Pool) -> None:
    """They are dropped, as in DeepSpeed, so that the first rate is one of a group that trains."""
    ranks = pool.run(loops.at_every_stage, call_loops.groups_without_parameters, world=_WORLD)
    assert ranks == [[[[0.125], 1, 1, [0.125], 1]] * 4] * _WORLD


def test_schedule_over_a_group_without_parameters(pool: Pool) -> None:
    """A schedule of the client's optimizer that the caller steps, as Trainer and accelerate do, keeps its groups: with
    adapters, the group without weight decay is empty."""
    ranks = pool.run(loops.at_every_stage, call_loops.rates_of_the_clients_own_schedule, world=_WORLD)
    assert ranks == [[[[0.375, 0.125], [0.375, 0.125]]] * 4] * _WORLD


def test_norm_of_a_skipped_step(pool: Pool) -> None:
    """It is infinite, as in DeepSpeed."""
    ranks = pool.run(loops.at_every_stage, call_loops.norm_of_a_skipped_step, world=_WORLD)
    assert ranks == [[float("inf")] * 4] * _WORLD


def test_gradients_of_fp16_are_those_of_the_whole_loss(pool: Pool) -> None:
    """They overflow at a scale at which gradients that are divided by the micro-steps, as DeepSpeed's, do not."""
    assert pool.run(loops.at_every_stage, call_loops.skipped_by_the_sum_of_two, world=_WORLD) == [[[0, 1]] * 4] * _WORLD


def test_module_states(pool: Pool) -> None:
    """Whole weights are loaded at every stage."""
    assert pool.run(loops.at_every_stage, call_loops.module_states, world=_WORLD) == [[True] * 4] * _WORLD


def test_another_batch(pool: Pool) -> None:
    """Micro-steps are counted from the beginning, as in DeepSpeed, so the step after the change may be shorter."""
    assert pool.run(loops.at_every_stage, call_loops.another_batch, world=_WORLD) == [[[1, 2, 2, 3, 3]] * 4] * _WORLD


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_another_batch_under_offload(pool: Pool, stage: int) -> None:
    """An engine that keeps no sum of gradients refuses more micro-steps at once; one that does takes them."""
    for text, (expected, offloaded) in pool.run(call_loops.another_batch_under_offload, stage, world=_WORLD):
        assert text.startswith("set_train_batch_size(16) makes 2 micro-steps, but the engine began with")
        assert "begin with gradient_accumulation_steps of 2 or more" in text
        assert torch.equal(expected, offloaded)


@pytest.mark.parametrize("client", [False, True])
def test_some_parameters(pool: Pool, client: bool) -> None:
    """Parameters that are in no group stay as they are, as in DeepSpeed."""
    expected = [[False, False, True, True]] * 4
    assert pool.run(loops.at_every_stage, model_loops.some_parameters, client, world=_WORLD) == [expected] * _WORLD


def test_schedule_of_the_client(pool: Pool) -> None:
    """A schedule that the caller makes of its own optimizer holds, as accelerate does it."""
    [[(expected, rates), *_], *_] = pool.run(loops.at_every_stage, call_loops.schedule_of_the_client, "known")
    assert rates == [1.25e-3] * 2
    for kind in ("own", "fused-adam"):
        for stages in pool.run(loops.at_every_stage, call_loops.schedule_of_the_client, kind):
            assert all(torch.equal(after, expected) and found == rates for after, found in stages)


def test_alternating_heads(pool: Pool) -> None:
    """A parameter that no forward of the step uses is stepped with zeros, as in DeepSpeed."""
    [[expected, *_], *_] = pool.run(loops.at_every_stage, model_loops.alternating_heads, True, world=_WORLD)
    for stages in pool.run(loops.at_every_stage, model_loops.alternating_heads, False, world=_WORLD):
        assert all(torch.equal(after, expected) for after in stages)


def test_optimizer_classes(pool: Pool) -> None:
    """The optimizer is an instance of DeepSpeed's class for the stage, as scripts ask."""
    expected = [(False, False), (True, False), (True, False), (False, True)]
    assert pool.run(loops.at_every_stage, call_loops.optimizer_classes, world=_WORLD) == [expected] * _WORLD


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_sixteen_bits(pool: Pool, dtype: str) -> None:
    """Without a precision in the configuration it stays as it is, at every stage, as in DeepSpeed."""
    ranks = pool.run(loops.at_every_stage, model_loops.in_sixteen_bits, dtype, world=_WORLD)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][0][0]) for after, _ in stages)
        assert all(kept == getattr(torch, dtype) for _, kept in stages)


@pytest.mark.slow
def test_a_compiled_model(pool: Pool) -> None:
    """torch.compile before initialize() changes no bit, and has no effect at stage 3."""
    ranks = pool.run(loops.at_every_stage, model_loops.compiled, world=_WORLD)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][0]) for after in stages)


def test_a_function_in_python(pool: Pool) -> None:
    """Its backward sees by ds_status that the weight it saved is whole, at every stage."""
    ranks = pool.run(loops.at_every_stage, model_loops.in_python, world=_WORLD)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][0]) for after in stages)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_weights_are_loaded(pool: Pool, dtype: str) -> None:
    """The step after load_state_dict starts from the loaded weights at every stage, not from masters of before."""
    ranks = pool.run(loops.at_every_stage, model_loops.weights_loaded, dtype, world=_WORLD)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][3]) for after in stages)


@pytest.mark.parametrize("destroys", [True, False], ids=["destroyed", "kept"])
def test_a_model_of_several_engines(pool: Pool, destroys: bool) -> None:
    """A later engine takes the model over, also from one that has sharded it; all stages agree."""
    ranks = pool.run(loops.at_every_stage, model_loops.in_two_engines, destroys, world=_WORLD)
    for stages in ranks:
        for results in stages:
            assert all(torch.equal(one, other) for one, other in zip(results, ranks[0][0], strict=True))


@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_a_layer_of_two_engines(pool: Pool, frozen: bool) -> None:
    """The steps of the first would not reach it, at any stage: an error with the layer's name, not lost updates."""
    words = "parameter '1.weight' belongs to a later engine" if not frozen else ""
    for *whole, sharded in pool.run(loops.at_every_stage, model_loops.in_two_models, frozen, world=_WORLD):
        assert [said[: len(words)] for said in whole] == [words] * 3
        assert all(bool(said) == bool(words) for said in whole)
        assert "this engine was destroyed" in sharded


def test_a_parameter_is_unfrozen(pool: Pool) -> None:
    """An engine has no state for it; without an error it would keep its values."""
    for stages in pool.run(loops.at_every_stage, model_loops.unfrozen, world=_WORLD):
        assert all("parameter '0.weight' was frozen at initialize() and has requires_grad now" in s for s in stages)


def test_misuse(pool: Pool) -> None:
    """Each is one error that says what to do."""
    words = [
        "call the scheduler's step() with them",
        "give all groups to initialize()",
        "the loss has no graph: its forward ran under no_grad",
        "takes a scalar loss, got (2, 3)",
    ]
    words.append("was replaced after initialize(), as by Module.half()")
    for stages in pool.run(loops.at_every_stage, call_loops.misused, world=_WORLD):
        for seen in stages:
            assert [text for text, part in zip(seen, words, strict=False) if part not in text] == []
        assert [len(seen) for seen in stages] == [5, 5, 5, 4]


def test_gradients_are_set(pool: Pool, tmp_path: Path) -> None:
    """By a function of each, and by parts at stage 3; the steps are equal if the sums are offloaded."""
    files = {"device": "nvme", "nvme_path": str(tmp_path), "buffer_count": 4}
    expected = None
    for offload in (None, {"device": "cpu"}, files):
        for stages in pool.run(loops.at_every_stage, call_loops.gradients_set, offload, world=_WORLD):
            for right, after in stages:
                expected = after if expected is None else expected
                assert right
                assert torch.equal(after, expected)


def test_a_folder_for_states(pool: Pool, tmp_path: Path) -> None:
    """nvme_path is made, as DeepSpeed makes it."""
    assert pool.run(call_loops.in_a_new_folder, str(tmp_path), world=_WORLD) == [["local_nvme"]] * _WORLD


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"torch_autocast": {"enabled": True, "dtype": "float16"}}, "stages 1 to 3 clip before the scale is undone"),
        ({"torch_autocast": {"enabled": True}, "bf16": {"enabled": True}}, "torch_autocast and bf16 are both enabled"),
        ({"optimizer": {"type": "Lamb"}}, "^optimizer.type 'Lamb' is not offered: its step depends on whole matrices"),
        ({"optimizer": {"type": "OneBitAdam"}}, "it compresses gradients on the wire, which would train another model"),
        ({"sparse_attention": {"mode": "fixed"}}, "sparse_attention is refused at every value"),
    ],
)
def test_refused_sections(keys: dict[str, object], reason: str) -> None:
    """Each with its name and a way out."""
    with pytest.raises(ConfigError, match=reason):
        resolve({"train_batch_size": 8, **keys})


def test_sections_of_no_effect() -> None:
    """``auto`` in a section that nobody reads, comments, and names without their prefix."""
    settings = resolve(
        {
            "train_batch_size": 8,
            "_comment": "for two GPUs",
            "pipeline": {"stages": "auto"},
            "zero_optimization": {"stage": 3, "allgather_sequential": True, "max_live_parameters": 10},
        }
    )
    assert settings.without_effect.keys() == {"_comment", "zero_optimization.stage3_allgather_sequential"}
    assert settings.engine["zero_optimization"]["stage3_max_live_parameters"] == 10


def test_deepspeed_config() -> None:
    """A configuration as an object: given values, defaults, and one error for an unknown name."""
    config = DeepSpeedConfig(
        {
            "train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "fp16": {"enabled": True, "loss_scale": 4},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
            "zero_optimization": {"stage": 3, "cpu_offload": True, "stage3_max_live_parameters": 7},
        }
    )
    assert (config.train_micro_batch_size_per_gpu, config.zero_enabled, config.zero_config.stage) == (4, True, 3)
    assert (config.fp16_enabled, config.float16_config.loss_scale, config.float16_config.hysteresis) == (True, 4, 2)
    assert (config.zero_config.max_live_parameters, config.zero_config.offload_optimizer.device) == (7, "cpu")
    assert (config.optimizer_name, config.optimizer_params, config.gradient_clipping) == ("adamw", {"lr": 0.5}, 1.0)
    assert (config.steps_per_print, config.dump_state, config.prescale_gradients) == (None, False, False)
    assert config.zero_config.gather_16bit_weights_on_model_save is False
    assert config.flops_profiler_config.profile_step == 1
    with pytest.raises(AttributeError, match=r"does not give 'step_per_print'; it has .*steps_per_print"):
        config.step_per_print  # noqa: B018
    with pytest.raises(AttributeError, match="the section has no key 'stages'"):
        config.zero_config.stages  # noqa: B018
    with pytest.raises(ConfigError, match="mpu and mesh_device are refused"):
        DeepSpeedConfig({"train_batch_size": 8}, mpu=argparse.Namespace())


def test_modules_are_attributes() -> None:
    """``import deepspeed`` alone gives every module of the stand-in, as in DeepSpeed; the report is a program."""
    package, top = loops.deepspeed(), SITE / "deepspeed"
    for file in set(top.rglob("*.py")) - {top / "env_report.py"}:
        parts = file.relative_to(top).with_suffix("").parts
        found = package
        for part in parts[:-1] if parts[-1] == "__init__" else parts:
            found = getattr(found, part)
        assert found is not None


def test_modules_that_are_not_there() -> None:
    """Their import is one error, by its name; libraries catch it as an ImportError."""
    loops.deepspeed()
    with pytest.raises(ModuleNotFoundError, match=r"deepspeed.compression.compress is not offered: zerobench"):
        import deepspeed.compression.compress  # noqa: F401


def test_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes by the formula of the page, for a model of 1,001,000 parameters on two GPUs."""
    n = 1000 * 1000 + 1000
    assert memory_estimates.estimate_zero2_model_states_mem_needs(n, 2, 1, False) == (0, 2 * n + 8 * n)
    assert memory_estimates.estimate_zero2_model_states_mem_needs(n, 2, 1, True) == (int(16 * n * 1.5), 2 * n)
    assert memory_estimates.estimate_zero3_model_states_mem_needs(n, n, 2, 1, False, False) == (
        int(4 * n * 2 * 1.5),
        4 * n + 9 * n,
        4 * n,
    )
    memory_estimates.estimate_zero2_model_states_mem_needs_all_live(nn.Linear(1000, 1000), num_gpus_per_node=2)
    memory_estimates.estimate_zero3_model_states_mem_needs_all_live(nn.Linear(1000, 1000), num_gpus_per_node=2)
    printed = capsys.readouterr().out
    assert printed.count("SW: Model with 1M total params") == 2
    assert printed.count("GB | ") == 2 * (2 + 6)


def test_calls_of_lightning(pool: Pool) -> None:
    """A schedule that the caller takes over, ``step()`` and ``state_dict()`` of the optimizer: the same steps."""
    usual, others = (
        pool.run(loops.at_every_stage, call_loops.stepped_as_lightning, lightning, world=_WORLD)
        for lightning in (False, True)
    )
    for stages in (*usual, *others):
        assert all(torch.equal(after, usual[0][0]) for after in stages)


def test_functions_of_scripts() -> None:
    """Seeds and nested data."""
    set_random_seed(3)
    first = torch.rand(2)
    set_random_seed(3)
    assert torch.equal(torch.rand(2), first)
    moved = move_to_device({"a": [torch.ones(1)], "b": "text"}, "meta")
    assert (moved["a"][0].device.type, moved["b"]) == ("meta", "text")


@pytest.mark.slow
def test_the_scripts_in_a_checkpoint(pool: Pool, tmp_path: Path) -> None:
    """``python zero_to_fp32.py . out`` in the folder of a checkpoint writes the weights; zero_to_torch.py rounds them.

    Files of 100 bytes at most each hold one tensor, and an index names the file of each.
    """
    pool.run(_saved, str(tmp_path), world=_WORLD)
    whole = _weights(tmp_path, "zero_to_fp32.py", "--safe_serialization")
    assert list(whole) == ["model.safetensors"]
    rounded = _weights(tmp_path, "zero_to_torch.py", "--dtype", "bf16")["pytorch_model.bin"]
    assert {name: value.dtype for name, value in rounded.items()} == dict.fromkeys(rounded, torch.bfloat16)
    pytest.importorskip("huggingface_hub")
    convert_zero_checkpoint_to_state_dict(tmp_path, tmp_path / "parts", "bf16", max_shard_size=100)
    parts = {path.name: _read(path) for path in (tmp_path / "parts").glob("*.bin")}
    index = json.loads((tmp_path / "parts" / "pytorch_model.bin.index.json").read_text())["weight_map"]
    assert len(parts) > 1
    assert {name: str(parts[index[name]][name]) for name in rounded} == {n: str(v) for n, v in rounded.items()}


def _weights(folder: Path, *script: str) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of each file that a script in the folder of a checkpoint writes."""
    command = [sys.executable, script[0], ".", "out", *script[1:]]
    done = subprocess.run(
        command, cwd=folder, env={**outside(), "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {path.name: _read(path) for path in (folder / "out").iterdir()}


def _read(path: Path) -> dict[str, torch.Tensor]:
    return {} if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


def _saved(group: object, folder: str) -> None:
    engine, *_ = loops.deepspeed().initialize(model=loops.model(), config=loops.config(3))
    engine.save_checkpoint(folder)
    engine.destroy()
