"""Loss scaling for fp16."""

from __future__ import annotations

from typing import Any

from zerobench.engine.config.schema import Fp16


class LossScaler:
    """The loss scale and its changes after overflow: static, or DeepSpeed's dynamic state machine.

    State: the scale, a count of steps, the step of the last overflow, and the hysteresis left.

    - Overflow: if more than one unit of hysteresis is left, use one; otherwise halve the scale, down to the minimum.
      Halving does not refill the hysteresis, so until a refill every further overflow halves the scale.
    - No overflow: if ``consecutive_hysteresis`` is set, refill at once. After each ``window`` steps without overflow
      (the step after the overflow does not count) refill and double the scale.
    """

    def __init__(self, config: Fp16) -> None:
        self.config = config
        self.dynamic = config.enabled and config.loss_scale == 0
        self.scale = 1.0
        if config.enabled:
            self.scale = 2.0**config.initial_scale_power if self.dynamic else config.loss_scale
        self._step = 0
        self._last_overflow = -1
        self._hysteresis = config.hysteresis

    def update(self, overflow: bool) -> None:
        """Advance by one step."""
        if self.dynamic:
            if overflow:
                self._overflowed()
            else:
                self._stepped()
        self._step += 1

    def state(self) -> dict[str, Any]:
        """The state, for a checkpoint; :meth:`restore` takes it as keyword arguments."""
        return {
            "scale": self.scale,
            "step": self._step,
            "last_overflow": self._last_overflow,
            "hysteresis": self._hysteresis,
        }

    def restore(self, *, scale: float, step: int, last_overflow: int, hysteresis: int) -> None:
        """Set the state; a static scale stays that of the configuration."""
        if self.dynamic:
            self.scale = scale
        self._step, self._last_overflow, self._hysteresis = step, last_overflow, hysteresis

    def _overflowed(self) -> None:
        if self._hysteresis == 1:
            self.scale = max(self.scale / 2, self.config.min_loss_scale)
        else:
            self._hysteresis -= 1
        self._last_overflow = self._step

    def _stepped(self) -> None:
        if self.config.consecutive_hysteresis:
            self._hysteresis = self.config.hysteresis
        stable = self._step - self._last_overflow - 1
        if stable > 0 and stable % self.config.loss_scale_window == 0:
            self._hysteresis = self.config.hysteresis
            self.scale *= 2
