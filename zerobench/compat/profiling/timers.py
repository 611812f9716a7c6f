"""``deepspeed.utils.timer``: timers by name, and the throughput of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.log import print_dist, tell


class Timer:
    """Adds up the time between starts and stops; the device's work before a call counts as ended."""

    def __init__(self, name: str) -> None:
        self.name_ = name
        self._begun: float | None = None
        self._records: list[float] = []  # seconds

    @property
    def started_(self) -> bool:
        """Whether it runs."""
        return self._begun is not None

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: it runs already.
        """
        if self.started_:
            raise RuntimeError(f"the timer {self.name_!r} has been started already; stop it first")
        self._begun = now()

    def stop(self, reset: bool = False, record: bool = False) -> None:
        """Add the time since the start.

        Raises:
            RuntimeError: it does not run.
        """
        if self._begun is None:
            raise RuntimeError(f"the timer {self.name_!r} does not run; start it first")
        self._records.append(now() - self._begun)
        self._begun = None

    def reset(self) -> None:
        """Forget all times."""
        self._begun = None
        self._records.clear()

    def set(self, milliseconds: float) -> None:
        """Have this time alone."""
        self._records = [milliseconds / 1000]

    def elapsed(self, reset: bool = True) -> float:
        """Milliseconds, with those since the start if it runs."""
        running = self.started_
        if running:
            self.stop()
        total = sum(self._records) * 1000
        if reset:
            self.reset()
        if running:
            self.start()
        return total

    def mean(self) -> float:
        """The mean in milliseconds, without the tenth at each end."""
        return trim_mean([each * 1000 for each in self._records], 0.1)


class SynchronizedWallClockTimer:
    """Timers by name, made when they are first asked for."""

    def __init__(self) -> None:
        self.timers: dict[str, Timer] = {}

    def __call__(self, name: str) -> Timer:
        return self.timers.setdefault(name, Timer(name))

    def get_timers(self) -> dict[str, Timer]:
        """All timers."""
        return self.timers

    @staticmethod
    def memory_usage() -> str:
        """The device's memory in words."""
        accelerator, gib = get_accelerator(), 1 << 30
        used, most = accelerator.memory_allocated() / gib, accelerator.max_memory_allocated() / gib
        return f" | mem_allocated: {used:.4f} GB | max_mem_allocated: {most:.4f} GB"

    def log(
        self,
        names: Iterable[str],
        normalizer: float = 1.0,
        reset: bool = True,
        memory_breakdown: bool = False,
        ranks: list[int] | None = None,
    ) -> None:
        """Print ``time (ms) | name: ...`` with those of the named timers that exist."""
        known = [name for name in names if name in self.timers]
        spent = [f"{name}: {self.timers[name].elapsed(reset) / normalizer:.2f}" for name in known]
        print_dist(" | ".join(["time (ms)", *spent]) + (self.memory_usage() if memory_breakdown else ""), ranks or [0])

    def get_mean(self, names: Iterable[str], normalizer: float = 1.0, reset: bool = True) -> dict[str, float]:
        """The mean of each named timer that exists, in milliseconds."""
        return {name: self.timers[name].mean() / normalizer for name in names if name in self.timers}


class NoopTimer:
    """A timer, and timers by name, that measure nothing."""

    def __call__(self, name: str) -> NoopTimer:
        return self

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    stop = reset = log = start

    def elapsed(self, *args: Any, **kwargs: Any) -> float:
        """0."""
        return 0.0

    mean = elapsed

    def get_timers(self) -> dict[str, Timer]:
        """None."""
        return {}

    get_mean = get_timers


class ThroughputTimer:
    """Samples per second, without the first steps.

    Args:
        config: DeepSpeed's section of timers; not read.
        batch_size: samples of a step.
        start_step: steps that do not count.
        steps_per_output: steps from one line to the next; None for no lines.
        monitor_memory: whether DeepSpeed measures the host's memory, too; not read.
        logging_fn: takes a line; by default it is logged, or printed if no handler takes it.
    """

    def __init__(
        self,
        config: Any,
        batch_size: int | None,
        start_step: int = 2,
        steps_per_output: float | None = None,
        monitor_memory: bool = False,
        logging_fn: Callable[[str], Any] | None = None,
    ) -> None:
        self.config, self.monitor_memory = config, monitor_memory
        self.batch_size, self.start_step, self.steps_per_output = batch_size or 1, start_step, steps_per_output
        self.logging = logging_fn or tell
        self.epoch_count = self.micro_step_count = self.global_step_count = 0
        self.total_elapsed_time = self._of_step = 0.0
        self._begun: float | None = None

    def update_epoch_count(self) -> None:
        """An epoch has ended."""
        self.epoch_count += 1
        self.micro_step_count = 0

    def start(self) -> None:
        """A micro-step begins."""
        self._begun = now()

    def stop(self, global_step: bool = False, report_speed: bool = True) -> None:
        """A micro-step ends, and a step if ``global_step`` is set."""
        if self._begun is None:
            return
        counts = self.global_step_count >= self.start_step
        self._of_step += now() - self._begun if counts else 0.0
        self._begun = None
        self.micro_step_count += 1
        if not global_step:
            return
        self.global_step_count += 1
        self.total_elapsed_time += self._of_step
        if report_speed and self.steps_per_output and counts and self.global_step_count % self.steps_per_output == 0:
            self._report()
        self._of_step = 0.0

    def _report(self) -> None:
        accelerator, gib = get_accelerator(), 1 << 30
        self.logging(
            f"epoch={self.epoch_count}/micro_step={self.micro_step_count}/global_step={self.global_step_count}, "
            f"RunningAvgSamplesPerSec={self.avg_samples_per_sec()}, "
            f"CurrSamplesPerSec={self.batch_size / max(self._of_step, 1e-6)}, "
            f"MemAllocated={round(accelerator.memory_allocated() / gib, 2)}GB, "
            f"MaxMemAllocated={round(accelerator.max_memory_allocated() / gib, 2)}GB"
        )

    def avg_samples_per_sec(self) -> float:
        """Samples per second of the steps that count; -inf before the first one."""
        counted = self.global_step_count - self.start_step
        return self.batch_size * counted / self.total_elapsed_time if counted > 0 else float("-inf")


def trim_mean(data: list[float], trim_percent: float) -> float:
    """The mean without this share of the values at each end; 0 for no values."""
    cut = int(len(data) * trim_percent)
    kept = sorted(data)[cut : len(data) - cut]
    return sum(kept) / len(kept) if kept else 0.0


def now() -> float:
    """Seconds of a clock, when the device's work before the call has ended."""
    get_accelerator().synchronize()
    return time.perf_counter()
