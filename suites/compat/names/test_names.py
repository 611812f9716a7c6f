"""DeepSpeed's other names: a script imports each; to call or construct one is one clear error."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from abc import ABC
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

from zerobench.compat import log, unoffered
from zerobench.compat.accelerator import op_builders
from zerobench.compat.accelerator.accelerator import Accelerator
from zerobench.compat.activation import SITE
from zerobench.compat.engine.engine import DeepSpeedEngine
from zerobench.compat.engine.refused_methods import REASONS
from zerobench.compat.profiling import quantities
from zerobench.compat.schedules import tuning
from zerobench.ranks import Pool
from zerobench.suites.compat import loops, oracle
from zerobench.suites.compat.names import names_of_deepspeed
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_PROGRAM = """
import importlib, sys
from zerobench.compat.activation import activate
from zerobench.compat.unoffered import recorded
activate()
for name, names in recorded().items():
    module = importlib.import_module(name)
    for each in names:
        getattr(module, each)
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.comm.coalesced_collectives import reduce_scatter_coalesced  # of a decorator in another module
from deepspeed.runtime.constants import ROUTE_TRAIN
from deepspeed.utils import DeprecatedException
from deepspeed.runtime.zero.partition_parameters import ZeroParamType
assert ROUTE_TRAIN == "train" and issubclass(DeprecatedException, Exception)
assert not isinstance(1, BF16_Optimizer)
import deepspeed.runtime.zero
assert deepspeed.zero is deepspeed.runtime.zero
assert deepspeed.version == deepspeed.__version__
assert deepspeed.git_hash == deepspeed.__git_hash__
for wrong in ("import deepspeed.nothing", "from deepspeed.runtime.utils import nothing", "deepspeed.initialise"):
    try:
        exec(wrong)
    except (ImportError, AttributeError) as error:
        print(error)
BF16_Optimizer()
"""


def test_each_name() -> None:
    """Of the names that are recorded each can be imported; a name that DeepSpeed lacks cannot."""
    env = {**outside(), "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, check=False)
    nothing, other, misprint = done.stdout.strip().splitlines()
    assert "deepspeed.nothing is not offered" in nothing
    assert "cannot import name 'nothing'" in other
    assert "'deepspeed' has no attribute 'initialise'" in misprint
    assert "NotImplementedError: deepspeed.runtime.bf16_optimizer.BF16_Optimizer is not offered" in done.stderr


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("checkpoint.ds_to_universal", "a checkpoint loads at any stage and on any number of ranks as it is"),
        ("nvme.perf_run_sweep", "zerobench's reference engine stands in for deepspeed"),
    ],
)
@pytest.mark.parametrize("starts", [[], ["-m", "zerobench.compat"]])
def test_programs(starts: list[str], module: str, reason: str) -> None:
    """``python -m`` of a module that is not offered is one clear line, also in a child of a job."""
    env = {**outside(), "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)])}
    command = [sys.executable, *starts, "-m", f"deepspeed.{module}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"python -m deepspeed.{module} is not offered: {reason}")
    assert "Traceback" not in done.stderr


@oracle.NEEDS_DEEPSPEED
@pytest.mark.slow
def test_recorded_names() -> None:
    """The installed DeepSpeed has those names (``python -m zerobench.suites.compat.names.names_of_deepspeed``)."""
    found, recorded = oracle.ask_anew(names_of_deepspeed.found), unoffered.recorded()
    assert {name: found.get(name) for name in recorded} == recorded
    assert names_of_deepspeed.__doc__


_CLASSES: list[tuple[str, str, Any]] = [
    ("runtime/engine.py", "DeepSpeedEngine", DeepSpeedEngine),
    ("accelerator/abstract_accelerator.py", "DeepSpeedAccelerator", Accelerator("cpu")),
]


@pytest.mark.parametrize(("file", "name", "ours"), _CLASSES)
def test_methods(file: str, name: str, ours: Any) -> None:
    """Each public method of the installed DeepSpeed's class is there: it works, or it refuses."""
    methods = names_of_deepspeed.methods(file, name)
    if methods is None:
        pytest.skip("needs DeepSpeed: pip install 'zerobench[deepspeed]'")
    assert {each for each in methods if not hasattr(ours, each)} == set()


def test_a_refused_method() -> None:
    """It names itself and says what to do."""
    for each in REASONS:
        with pytest.raises(NotImplementedError, match=rf"engine.{each}\(\) is not offered: "):
            getattr(DeepSpeedEngine, each)(None, 1)


def test_a_method_of_a_refused_class() -> None:
    """It is not there, for ``hasattr()``, too, and the error says so; the class can be a base beside an abstract."""
    refused: Any = unoffered._name("deepspeed.runtime.sequence_parallel.ulysses_sp", "TiledMLP")
    own: Any = type("Own", (refused, ABC), {"name": "own"})
    for each in (refused, own):
        with pytest.raises(AttributeError, match=r"ulysses_sp\.TiledMLP\.apply is not offered: .*drop-in\.md"):
            each.apply(1)
        assert not hasattr(each, "apply")
        with pytest.raises(NotImplementedError, match=r"TiledMLP is not offered"):
            each()
    assert own.name == "own"


def test_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers of the caller's own, levels by name, and a file of JSON."""
    made = log.LoggerFactory.create_logger("of a script", logging.ERROR)
    log.set_log_level_from_string("debug", made)
    assert (made.level, [each.level for each in made.handlers]) == (logging.DEBUG, [logging.DEBUG])
    assert log.get_dist_msg("text", ranks=[3]) == "[Rank -1] text"
    with pytest.raises(ValueError, match="cannot be None"):
        log.LoggerFactory.create_logger()
    monkeypatch.setattr(log.logger, "level", logging.INFO)
    assert log.should_log_le("warning")
    assert not log.should_log_le("debug")
    log.print_json_dist({"loss": 1.5}, ranks=[0], path=str(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": 1.5, "rank": -1}


def test_an_object_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attributes, one a line, at INFO."""
    handler, lines = logging.Handler(), list[str]()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(log.logger, "handlers", [handler])
    log.logger.setLevel(logging.INFO)
    try:
        log.print_configuration(Namespace(zero=3, batch=8), "job")
    finally:
        log.logger.setLevel(logging.WARNING)
    assert lines == ["job:", "  batch ........................ 8", "  zero ......................... 3"]


def _logged(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The lines of a caller, and of an engine whose configuration has a key without effect."""
    log._once.cache_clear()
    ds, printed = loops.deepspeed(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        ds.utils.logger.info("not asked for")
        ds.utils.log_dist("nor this", ranks=[0])
        for ranks in ([1], [-1], [], None):
            ds.utils.log_dist(f"ranks {ranks}", ranks=ranks, level=logging.WARNING)
        ds.initialize(model=nn.Linear(5, 5), config=loops.config(stage))[0].destroy()
    return [line.partition("] [")[2] for line in printed.getvalue().splitlines() if line]


def test_the_level_of_the_logger(pool: Pool) -> None:
    """It is DeepSpeed's, WARNING, and so are the ranks that log. The engine's own line is not lost."""
    for rank, lines in enumerate(pool.run(_logged, 0, world=4)):
        expected = [f"WARNING] [Rank {rank}] ranks {ranks}" for ranks in ([1], [-1]) if rank in ranks or ranks == [-1]]
        assert lines[: len(expected)] == expected
        assert ["without effect" in line for line in lines[len(expected) :]] == [True] * (rank == 0)


def test_tuning_arguments() -> None:
    """The arguments make the section of the schedule that is asked for."""
    parser = tuning.add_tuning_arguments(ArgumentParser())
    config, reason = tuning.get_config_from_args(parser.parse_args([]))
    assert (config, reason) == (None, "--lr_schedule not specified on command line")
    given = ["--lr_schedule", "WarmupDecayLR", "--warmup_num_steps", "7"]
    config, reason = tuning.get_config_from_args(parser.parse_args(given))
    params = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.001, "warmup_num_steps": 7, "warmup_type": "log"}
    assert (config, reason) == ({"type": "WarmupDecayLR", "params": params}, None)


_SECTIONS: list[tuple[dict[str, Any], tuple[float | None, str]]] = [
    ({"type": "OneCycle", "params": {"cycle_max_lr": 0.25}}, (0.25, "")),
    ({"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}}, (0.5, "")),
    ({"params": {}}, (None, "LR schedule type not defined in config")),
    ({"type": "WarmupLR"}, (None, "LR schedule params not defined in config")),
    ({"type": "Other", "params": {}}, (None, "Other is not a valid LR schedule")),
]


@pytest.mark.parametrize(("section", "expected"), _SECTIONS)
def test_rate_of_a_section(section: dict[str, Any], expected: tuple[float | None, str]) -> None:
    """DeepSpeed's answers."""
    assert tuning.get_lr_from_config(section) == expected


def test_op_builders() -> None:
    """None is compatible, and load() says what to do."""
    builder = op_builders.CPUAdamBuilder()
    assert not builder.is_compatible()
    with pytest.raises(NotImplementedError, match="CPUAdamBuilder builds nothing here"):
        builder.load()


@pytest.mark.parametrize(("number", "units", "expected"), [(1536, None, "1.54 K"), (2e9, "M", "2000 M")])
def test_quantities(number: float, units: str | None, expected: str) -> None:
    """As DeepSpeed writes them."""
    assert quantities.number_to_string(number, units) == expected
    assert quantities.flops_to_string(number, units) == f"{expected}FLOPS"
