"""Progress: what rank 0 prints and the monitors receive during training."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zerobench.compat.log import log_dist
from zerobench.compat.monitors import Monitors

if TYPE_CHECKING:
    from zerobench.compat.engine import DeepSpeedEngine


class Progress:
    """A line each ``steps_per_print`` steps, times if ``wall_clock_breakdown`` is set, and the monitors' events.

    Args:
        engine: its owner, under construction.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine
        self._times: dict[str, float] = {}
        self._monitors = Monitors(engine.config) if engine.global_rank == 0 else None
        if engine.dump_state():
            log_dist(json.dumps(engine.config, indent=2, default=str), ranks=[0])

    @contextmanager
    def timing(self, phase: str, training: bool) -> Iterator[None]:
        """Add the block's time to the phase."""
        begin = time.perf_counter()
        yield
        if training:
            self._times[phase] = self._times.get(phase, 0.0) + time.perf_counter() - begin

    def report(self) -> None:
        """A step has ended: print and record what the configuration asks for."""
        engine = self._engine
        every = engine.steps_per_print()
        if every is not None and engine.global_steps % every == 0:
            lr, mom = engine.get_lr(), engine.get_mom()
            log_dist(f"step={engine.global_steps}, skipped={engine.skipped_steps}, lr={lr}, mom={mom}", ranks=[0])
        if engine.wall_clock_breakdown():
            spent = " | ".join(f"{phase}: {seconds * 1000:.2f}" for phase, seconds in self._times.items())
            log_dist(f"time (ms) | {spent}", ranks=[0])
        if self._monitors is not None:
            self._monitors.write(self._events(), engine.global_samples)
        self._times.clear()

    def _events(self) -> dict[str, float]:
        engine = self._engine
        events = {"Train/Samples/lr": float(engine.get_lr()[0])}
        if engine.fp16_enabled():
            events["Train/Samples/loss_scale"] = engine.loss_scale()
        if engine.wall_clock_breakdown():
            names = {"fwd": "forward", "bwd": "backward", "step": "step"}
            for phase, seconds in self._times.items():
                events[f"Train/Samples/elapsed_time_ms_{names[phase]}"] = seconds * 1000
        return events

    def close(self) -> None:
        """Close the monitors."""
        if self._monitors is not None:
            self._monitors.close()
