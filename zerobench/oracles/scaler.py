"""The loss scaler as a state machine: DeepSpeed's DynamicLossScaler, or a constant."""

from __future__ import annotations

from zerobench.scenario import LossScale


class LossScaler:
    """The scale of each step's loss; :meth:`update` tells it how the step went.

    Dynamic: an overflow uses one unit of hysteresis. If a single unit is left, every overflow halves the scale, down to
    the minimum (DeepSpeed raises there instead). Good step ``window + 1`` since the last overflow or the start, and
    every ``window``-th after it, doubles the scale and refills the hysteresis; with ``consecutive_hysteresis`` every
    good step refills it. Static if ``spec.static`` is positive: the scale is constant.
    """

    def __init__(self, spec: LossScale) -> None:
        self.spec = spec
        self.scale = spec.static or 2.0**spec.initial_power
        self.iteration = 0
        self.last_overflow = -1
        self.hysteresis = spec.hysteresis

    def update(self, overflow: bool) -> None:
        """Move on by one step, skipped (``overflow``) or applied."""
        if self.spec.static:
            return
        if overflow:
            self._shrink()
        else:
            self._grow()
        self.iteration += 1

    def _shrink(self) -> None:
        if self.hysteresis > 1:
            self.hysteresis -= 1
        else:
            self.scale = max(self.scale / 2, self.spec.minimum)
        self.last_overflow = self.iteration

    def _grow(self) -> None:
        if self.spec.consecutive_hysteresis:
            self.hysteresis = self.spec.hysteresis
        stable = self.iteration - self.last_overflow - 1
        if stable > 0 and stable % self.spec.window == 0:
            self.hysteresis = self.spec.hysteresis
            self.scale *= 2
