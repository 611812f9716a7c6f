"""Progress: the lines of rank 0 and the values for monitors during training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zerobench.compat.log import log_dist, report
from zerobench.compat.profiling.flops_profiler import FlopsProfiler
from zerobench.compat.profiling.memory import see_memory_usage
from zerobench.compat.profiling.monitors import MonitorMaster, get_monitor_config
from zerobench.compat.profiling.timers import SynchronizedWallClockTimer, ThroughputTimer

if TYPE_CHECKING:
    from zerobench.compat.engine.engine import DeepSpeedEngine

#: DeepSpeed's names of the phases, and those in the names of events. The reduction is what follows autograd: the part
#: that does not overlap with it.
_PHASES = {
    "fwd": "forward",
    "bwd": "backward",
    "bwd_inner": "backward_inner",
    "bwd_allreduce": "backward_allreduce",
    "step": "step",
}


class Progress:
    """Lines of ``steps_per_print``, ``wall_clock_breakdown`` and ``dump_state``, and the monitors' events.

    Args:
        engine: its owner, under construction.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine
        self.timers = SynchronizedWallClockTimer()
        self.throughput = ThroughputTimer(None, engine.train_batch_size(), steps_per_output=engine.steps_per_print())
        self._measured = engine.wall_clock_breakdown()
        self._section = engine._settings.section("flops_profiler")
        self.profiler = self._new_profiler() if self._section.get("enabled") else None
        self._profiled = self._reports = False
        self.monitor = MonitorMaster(get_monitor_config(engine.config))
        if self._measured:
            reducer: Any = engine._engine.reducer
            reducer.finish = self._timed(reducer.finish, "bwd_allreduce")
            reducer.complete = self._timed(reducer.complete, "bwd_allreduce")
        if engine.optimizer is not None:
            log_dist(self._line(), ranks=[0])
        if engine.dump_state():
            report(json.dumps(engine.config, indent=2, default=str))

    @contextmanager
    def timing(self, phase: str, training: bool = True) -> Iterator[None]:
        """Add the block's time to the phase, if times are printed."""
        if not (self._measured and training):
            yield
            return
        running = [self.timers(phase), self.timers(f"{phase}_microstep")]
        for timer in running:
            timer.start()
        try:
            yield
        finally:
            for timer in running:
                timer.stop()

    def _timed(self, call: Callable[[], Any], phase: str) -> Callable[[], Any]:
        def timed() -> Any:
            with self.timing(phase):
                return call()

        return timed

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """Count the FLOPs of a forward, if it is the first one of the step that the configuration names."""
        named = self._engine.global_steps == self._section.get("profile_step", 1)
        if self.profiler is None or not named or self._profiled or not self._engine.module.training:
            yield
            return
        self._profiled = self._reports = True
        with self.profiler.profiling():
            yield

    def _new_profiler(self) -> FlopsProfiler:
        factor = self._section.get("recompute_fwd_factor", 0.0)
        return FlopsProfiler(self._engine.module, self._engine, factor)

    def _print_profile(self) -> None:
        """The report on rank 0 at the end of its step."""
        if self.profiler is not None and self._reports:
            self._reports = False
            if self._engine.global_rank == 0:
                given = self._section
                self.profiler.print_model_profile(
                    profile_step=given.get("profile_step", 1),
                    module_depth=given.get("module_depth", -1),
                    top_modules=given.get("top_modules", 1),
                    detailed=given.get("detailed", True),
                    output_file=given.get("output_file"),
                )
            self.profiler.end_profile()

    def forward(self, training: bool) -> None:
        """A forward begins."""
        if training and self._engine.steps_per_print():
            self.throughput.start()

    def step(self, boundary: bool) -> None:
        """A micro-step has ended, and a step if ``boundary`` is set: print and record what the configuration wants."""
        engine, every = self._engine, self._engine.steps_per_print()
        if boundary and every and engine.global_steps % every == 0:
            report(self._line())
        self.throughput.stop(global_step=boundary, report_speed=engine.global_rank == 0)
        if self._measured:
            self._split_backward()
            self.timers.log([f"{phase}_microstep" for phase in _PHASES])
        if boundary:
            self._print_profile()
            see_memory_usage("after step", force=bool(engine.config.get("memory_breakdown")))
        if boundary and self.monitor.enabled:
            self.monitor.write_events((*event, engine.global_samples) for event in self._events().items())
        if boundary and self._measured:
            self.timers.log(_PHASES)

    def _line(self) -> str:
        engine = self._engine
        counts = f"step={engine.global_steps}, skipped={engine.skipped_steps}"
        return f"{counts}, lr={engine.get_lr()}, mom={engine.get_mom()}"

    def _split_backward(self) -> None:
        """The time of autograd is what remains of the backward."""
        for end in ("", "_microstep"):
            parts = [self.timers(f"{phase}{end}").elapsed(reset=False) for phase in ("bwd", "bwd_allreduce")]
            self.timers(f"bwd_inner{end}").set(parts[0] - parts[1])

    def _events(self) -> dict[str, float]:
        engine = self._engine
        events = {"Train/Samples/lr": float(engine.get_lr()[0])}
        if engine.fp16_enabled():
            events["Train/Samples/loss_scale"] = engine.loss_scale()
        if self._measured:
            for phase, name in _PHASES.items():
                events[f"Train/Samples/elapsed_time_ms_{name}"] = self.timers(phase).elapsed(reset=False)
        return events

    def close(self) -> None:
        """Close the monitors."""
        self.monitor.close()
