"""The lines of a job: times, FLOPs, collectives, its configuration; and the values for its monitors."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.compat.comm.comms_logger import comms_logger, convert_size, rates
from zerobench.compat.profiling.flops_profiler import get_model_profile
from zerobench.compat.profiling.module_profile import ModuleTimes
from zerobench.compat.profiling.timers import SynchronizedWallClockTimer, ThroughputTimer
from zerobench.ranks import Pool
from zerobench.suites.compat import loops, oracle

pytestmark = pytest.mark.usefixtures("reference")

_SECTIONS = {
    "wall_clock_breakdown": True,
    "steps_per_print": 1,
    "dump_state": True,
    "memory_breakdown": True,
    "flops_profiler": {"enabled": True, "profile_step": 1, "top_modules": 2, "detailed": True},
    "comms_logger": {"enabled": True, "verbose": False},
}
#: Of one forward of the model on two samples: two for each multiplication.
_FLOPS = 2 * 2 * (5 * 16 + 16 * 3)
_PHASES = ["fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"]


def _trained(group: dist.ProcessGroup, stage: int, sections: dict[str, Any]) -> tuple[str, Tensor, dict[str, Any]]:
    """The printed text, the masters after two steps, and the recorded collectives."""
    ds, printed = loops.deepspeed(), io.StringIO()
    comm = ds.comm
    comm.reset_log()
    with contextlib.redirect_stdout(printed):
        net = loops.model()
        engine, _, loader, _ = ds.initialize(
            model=net, training_data=loops.data(), config=loops.config(stage, **sections)
        )
        for batch in list(loader)[:4]:
            engine.backward(loops.loss(engine, batch))
            engine.step()
        comm.all_reduce(torch.ones(10))
        after = loops.masters(net)
        summary = comm.log_summary(show_straggler=True, return_dict=True)
        count = comm.get_comm_operation_count()
        _check_profiler(engine)
        engine.destroy()
    comms_logger.configure({"enabled": False})
    counted = sum(each["count"] for sizes in summary["summary"].values() for each in sizes.values())
    assert counted == count
    return printed.getvalue(), after, summary["summary"]


def _check_profiler(engine: Any) -> None:
    """After the report the engine's profiler has its numbers; without its section there is none."""
    if not engine.flops_profiler_enabled():
        with pytest.raises(AttributeError, match="flops_profiler is not offered: enable the section flops_profiler"):
            engine.flops_profiler  # noqa: B018
        return
    profiler = engine.flops_profiler
    assert (profiler.params, profiler.macs, profiler.flops) == (147, _FLOPS // 2, _FLOPS)


def _at_two_stages(group: dist.ProcessGroup) -> list[tuple[str, bool, dict[str, Any], dict[str, Any]]]:
    return [_both(group, stage) for stage in (0, 3)]


def _both(group: dist.ProcessGroup, stage: int) -> tuple[str, bool, dict[str, Any], dict[str, Any]]:
    printed, after, recorded = _trained(group, stage, _SECTIONS)
    _, plain, nothing = _trained(group, stage, {"steps_per_print": None})
    return printed, torch.equal(after, plain), recorded, nothing


def _heard(group: dist.ProcessGroup, stage: int, sections: dict[str, Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """The records that a script's handler receives in three steps, and the printed lines."""
    logger, seen, printed = loops.deepspeed().utils.logging.logger, [], io.StringIO()
    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stdout(printed):
            logger.setLevel(logging.INFO)
            _trained_for(3, stage, sections)
            logger.setLevel(logging.WARNING)
            if stage:
                _trained_for(3, stage, sections)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.WARNING)
    lines = [line for line in printed.getvalue().splitlines() if line and "without effect" not in line]
    return [each for each in seen if "without effect" not in each[1]], lines


def _trained_for(steps: int, stage: int, sections: dict[str, Any]) -> None:
    keys = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8, **sections)
    engine, _, loader, _ = loops.deepspeed().initialize(model=loops.model(), training_data=loops.data(), config=keys)
    for batch in list(loader)[:steps]:
        engine.backward(loops.loss(engine, batch))
        engine.step()
    engine.destroy()


def test_handlers_of_the_script(pool: Pool) -> None:
    """A handler on DeepSpeed's logger receives the lines of steps_per_print on rank 0, as DeepSpeed logs them.

    If the logger is at its own level, no handler takes them, and they are printed.
    """
    sections = {"steps_per_print": 3, "comms_logger": {"enabled": False}}
    [(heard, printed), *others] = pool.run(_heard, 0, sections, world=4)
    speed = "epoch=0/micro_step=3/global_step=3, RunningAvgSamplesPerSec="
    expected = ["[Rank 0] step=0, skipped=0, lr=[0.0]", "[Rank 0] step=3, skipped=0, lr=[", speed]
    assert [level for level, _ in heard] == ["INFO"] * 3
    assert [text for (_, text), begin in zip(heard, expected, strict=True) if not text.startswith(begin)] == []
    assert printed == []
    assert others == [([], [])] * 3
    [(heard, printed), *others] = pool.run(_heard, 2, sections, world=4)
    assert len(heard) == 3
    assert [line for line, begin in zip(printed, expected[1:], strict=True) if not line.startswith(begin)] == []
    assert others == [([], [])] * 3


def test_a_job_with_all_meters(pool: Pool) -> None:
    """It trains the same model, and rank 0 prints what DeepSpeed's users look for."""
    for rank, stages in enumerate(pool.run(_at_two_stages, world=4)):
        for printed, same, recorded, nothing in stages:
            assert same
            assert nothing == {}
            assert recorded["all_reduce"][40]["count"] == 1
            assert sum(each["count"] for each in recorded["all_to_all"].values()) >= 4  # one a micro-step at least
            if rank == 0:
                _check_printed(printed, recorded)
            else:
                assert "time (ms)" not in printed
                assert "Profiler" not in printed


def _check_printed(printed: str, recorded: dict[str, Any]) -> None:
    lines = printed.splitlines()
    times = [line.removeprefix("[Rank 0] ") for line in lines if "time (ms) | " in line]
    assert len(times) == 4 + 2  # micro-steps and steps
    steps = [[part.partition(":")[0] for part in line.split(" | ")[1:]] for line in times]
    micro = [f"{phase}_microstep" for phase in _PHASES]
    assert steps == [micro, micro, _PHASES, micro, micro, _PHASES]
    assert sum("step=2, skipped=0, lr=" in line for line in lines) == 1
    assert sum("after step | device:" in line for line in lines) == 2
    assert f"{'fwd flops per GPU: ':<70}  {_FLOPS} " in printed
    deepest = "{'Linear': '147', 'Tanh': '0'}", "{'Linear': '256 MACs', 'Tanh': '0 MACs'}"
    assert "depth 1:\n    params      - {}\n    MACs        - {}\n    fwd latency - ".format(*deepest) in printed
    assert re.search(
        r"\(0\): Linear\(96 = 65.31% Params, 160 MACs = 62.5% MACs, .*s = .*% latency, .*FLOPS, in_f", printed
    )
    begin = lines.index("[Rank 0] {")
    end = lines.index("}", begin)
    dumped = json.loads("\n".join(["{", *lines[begin + 1 : end + 1]]))
    assert dumped["zero_optimization"]["chunk_size"] == 32
    assert [line for line in lines if line in recorded] == [*recorded, *recorded]
    assert any(line.split()[:3] == ["40.0", "B", "1"] for line in lines)


def test_rates() -> None:
    """By DeepSpeed's formulas: 1 MB in 2 ms on 4 ranks."""
    megabyte = 1_000_000
    assert rates("all_reduce", megabyte, 2.0, 4) == pytest.approx((8.0, 6.0))
    assert rates("all_gather", megabyte, 2.0, 4) == pytest.approx((16.0, 12.0))
    assert rates("all_to_all", megabyte, 2.0, 4) == pytest.approx((4.0, 3.0))
    assert rates("broadcast", megabyte, 2.0, 4) == pytest.approx((4.0, 4.0))
    assert (convert_size(0), convert_size(1536), convert_size(3 << 30)) == ("0.0 B", "1.5 KB", "3.0 GB")


def test_a_models_profile(tmp_path: Path) -> None:
    """get_model_profile counts one forward, and writes its report to a file."""
    file = tmp_path / "deep" / "profile.txt"
    found = get_model_profile(loops.model(), input_shape=(2, 5), as_string=False, output_file=file)
    assert found == (_FLOPS, _FLOPS // 2, 5 * 16 + 16 + 16 * 3 + 3)
    assert "DeepSpeed Flops Profiler" in file.read_text()
    with pytest.raises(ValueError, match="has no input for the model; give input_shape"):
        get_model_profile(loops.model())


class _Nested(nn.Module):
    """A list that has no forward of its own, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layers[1](self.layers[0](self.layers[0](x))))


def _modules() -> list[str]:
    """The lines of each module of a profile, and of the first depth, with T in place of times."""
    profiler = importlib.import_module("deepspeed.profiling.flops_profiler").FlopsProfiler
    torch.manual_seed(0)
    made, printed = profiler(_Nested()), io.StringIO()
    made.start_profile()
    made.model(torch.ones(8, 4))
    made.stop_profile()
    with contextlib.redirect_stdout(printed):
        made.print_model_profile()
        made.print_model_aggregated_profile(module_depth=1)
    made.end_profile()
    assert "latency" not in repr(made.model)
    report = re.sub(r"[\d.]+ m?u?s = [\d.]+% latency, [\d.]+ \w*FLOPS", "T", printed.getvalue())
    modules = re.findall(r"^(?:  .*, T.*|\w+\(|  +\(layers\).*|\)|depth 0:.*)$", report, re.MULTILINE)
    return [*modules, *re.findall(r"^    (?:params|MACs) .* - .*'_Nested': '([^']*)'", report, re.MULTILINE)]


def test_modules_of_a_profile() -> None:
    """Times are taken of each, also of those that are called twice."""
    loops.deepspeed()
    found = _modules()
    assert "  40 = 100% Params, 384 MACs = 100% MACs, T" in found
    assert sum(line.count(", T") for line in found) == 3


def test_times_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all forwards of a module with those inside it, also of one that raises; a list has those of its modules."""
    clock = iter(range(1000))
    monkeypatch.setattr("zerobench.compat.profiling.module_profile.now", lambda: float(next(clock)))
    model, times = _Nested(), ModuleTimes()
    first, second = model.layers
    times.begin(model)
    model(torch.ones(1, 4))
    assert [times.of(each) for each in (first, second, model.layers, model)] == [2.0, 1.0, 3.0, 7.0]
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 5))
    assert [times.of(each) for each in (first, model)] == [3.0, 10.0]
    times.end()
    model(torch.ones(1, 4))
    assert times.of(model) == 10.0
    times.begin(model, [nn.Linear])
    model(torch.ones(1, 4))
    assert [times.of(each) for each in (first, model)] == [0.0, 1.0]


@pytest.mark.slow
@oracle.NEEDS_DEEPSPEED
def test_modules_of_a_profile_are_deepspeeds() -> None:
    """The installed DeepSpeed prints these, in this order."""
    loops.deepspeed()
    assert _modules() == oracle.ask(_modules)


def _labels() -> list[str]:
    """Of the lines of a profile's summary, with an engine whose phases took 5 ms each."""
    profiler = importlib.import_module("deepspeed.profiling.flops_profiler").FlopsProfiler
    timer = SimpleNamespace(elapsed=lambda reset: 5.0)
    engine = SimpleNamespace(world_size=2, dp_world_size=2, mp_world_size=1, has_moe_layers=False)
    engine.train_micro_batch_size_per_gpu, engine.wall_clock_breakdown = lambda: 4, lambda: True
    engine.timers = lambda name: timer
    model = loops.model()
    made, printed = profiler(model, engine), io.StringIO()
    made.start_profile()
    model(torch.ones(2, 5))
    made.stop_profile()
    with contextlib.redirect_stdout(printed):
        made.print_model_profile(detailed=False)
    made.end_profile()
    lines = re.findall(r"^(\S.*?): +(?:(5 ms|15 ms|2|1|4|147|256 MACs|533.33) *$)?", printed.getvalue(), re.MULTILINE)
    return [f"{label}: {value}" for label, value in lines]


def test_lines_of_a_profile() -> None:
    """Those of the model, of the phases and of samples."""
    loops.deepspeed()
    found = _labels()
    assert "params of model = params per GPU * mp_size: 147" in found
    assert "fwd flops of model = fwd flops per GPU * mp_size: " in found
    assert "fwd+bwd FLOPS per GPU = 3 * fwd flops per GPU / (fwd+bwd latency): " in found
    assert found[-1] == "samples/second: 533.33"


@pytest.mark.slow
@oracle.NEEDS_DEEPSPEED
def test_lines_of_a_profile_are_deepspeeds() -> None:
    """The installed DeepSpeed prints these, in this order."""
    loops.deepspeed()
    assert _labels() == oracle.ask(_labels)


def test_timers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They add up, go on while they are read, and refuse calls out of turn; throughput leaves the first steps out."""
    clock = iter(range(1000))
    monkeypatch.setattr("zerobench.compat.profiling.timers.now", lambda: float(next(clock)))
    timers = SynchronizedWallClockTimer()
    timer = timers("a")
    for _ in range(3):
        timer.start()
        timer.stop()
    assert (timer.elapsed(reset=False), timer.mean()) == (3000.0, 1000.0)
    timer.start()
    assert timer.elapsed() == 4000.0
    with pytest.raises(RuntimeError, match="'a' has been started already; stop it first"):
        timer.start()
    timer.stop()
    with pytest.raises(RuntimeError, match="'a' does not run; start it first"):
        timer.stop()
    timers.log(["a", "b"])
    assert capsys.readouterr().out == "[Rank -1] time (ms) | a: 1000.00\n"
    lines: list[str] = []
    speed = ThroughputTimer(None, 8, start_step=1, steps_per_output=2, logging_fn=lines.append)
    for step in range(4):
        speed.start()
        speed.stop(global_step=True)
        assert speed.avg_samples_per_sec() == (8.0 if step else float("-inf"))
    assert [line.partition(",")[0] for line in lines] == [
        "epoch=0/micro_step=2/global_step=2",
        "epoch=0/micro_step=4/global_step=4",
    ]
    assert "RunningAvgSamplesPerSec=8.0, CurrSamplesPerSec=8.0" in lines[0]
