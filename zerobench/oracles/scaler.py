"""The loss scaler as a state machine: a constant, DeepSpeed's DynamicLossScaler, or torch.amp.GradScaler."""

from __future__ import annotations

from zerobench.scenario import LossScale


class LossScaler:
    """The scale of each step's loss, constant; :meth:`update` tells it how the step went."""

    def __init__(self, spec: LossScale) -> None:
        self.spec = spec
        self.scale = spec.static or 2.0**spec.initial_power

    def update(self, overflow: bool) -> None:
        """Move on by one step, skipped (``overflow``) or applied."""


class DeepSpeedScaler(LossScaler):
    """An overflow uses one unit of hysteresis. If a single unit is left, every overflow halves the scale, down to the
    minimum (DeepSpeed raises there instead). Good step ``window + 1`` since the last overflow or the start, and every
    ``window``-th after it, doubles the scale and refills the hysteresis; with ``consecutive_hysteresis`` every good
    step refills it.
    """

    def __init__(self, spec: LossScale) -> None:
        super().__init__(spec)
        self.iteration = 0
        self.last_overflow = -1
        self.hysteresis = spec.hysteresis

    def update(self, overflow: bool) -> None:
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


class GradScaler(LossScaler):
    """Every overflow halves the scale, and every ``window``-th good step since then or the start doubles it."""

    def __init__(self, spec: LossScale) -> None:
        super().__init__(spec)
        self.good = 0

    def update(self, overflow: bool) -> None:
        if overflow:
            self.scale, self.good = self.scale / 2, 0
            return
        self.good += 1
        if self.good == self.spec.window:
            self.scale, self.good = self.scale * 2, 0


def scaler_of(spec: LossScale) -> LossScaler:
    """The scaler in its first state."""
    if spec.static:
        return LossScaler(spec)
    return DeepSpeedScaler(spec) if spec.scaler == "deepspeed" else GradScaler(spec)
