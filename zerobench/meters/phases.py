"""PhaseMeter: the times of forward, backward and optimizer in a step, measured from outside the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from zerobench.recording import Split

#: A moment: seconds on the CPU, an event on CUDA.
_Clock = Callable[[], Any]


class PhaseMeter:
    """The seconds of a step by phase: call :meth:`begin`, run the step with :meth:`mark`, then :meth:`split`.

    A forward ends when the model's own forward returns, a backward when the subject's ``micro_step`` does, and the
    optimizer is the subject's ``step``. On CUDA the marks are events on the current stream, so that a wait of the
    stream counts in the phase in which it waits; nothing is synchronized before :meth:`split` is called.
    """

    def __init__(self, model: nn.Module, device: str) -> None:
        self._clock: _Clock = _cuda_event if device == "cuda" else time.perf_counter
        self._marks: list[tuple[str, Any]] = []
        model.register_forward_hook(lambda *_: self.mark("forward"))

    def begin(self) -> None:
        """The step begins now."""
        self._marks = []
        self.mark("begin")

    def mark(self, phase: str) -> None:
        """A phase (forward, backward or optimizer) ends now."""
        self._marks.append((phase, self._clock()))

    def split(self) -> Split:
        """The seconds since :meth:`begin`; a mark ends its phase."""
        found = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        for (_, before), (phase, now) in pairwise(self._marks):
            found[phase] += _seconds(before, now)
        return Split(**found)


def _cuda_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds(before: Any, now: Any) -> float:
    if isinstance(now, float):
        return now - float(before)
    now.synchronize()
    return float(before.elapsed_time(now)) / 1e3
