"""``optimizer.loss_scaler``: the engine's loss scale, as an object of DeepSpeed's classes."""

from __future__ import annotations

from typing import Any

from zerobench.compat.errors import CallError
from zerobench.engine import Engine

#: By DeepSpeed's name of a dynamic scaler's state or setting, that of the engine.
_STATE = {"cur_iter": "step", "last_overflow_iter": "last_overflow", "cur_hysteresis": "hysteresis"}
_SETTINGS = {
    "scale_window": "loss_scale_window",
    "min_scale": "min_loss_scale",
    "delayed_shift": "hysteresis",
    "consecutive_hysteresis": "consecutive_hysteresis",
}


class LossScalerBase:
    """``optimizer.loss_scaler``: the engine's loss scale as it is now. A script makes none: the engine scales losses.

    Raises:
        NotImplementedError: it is called.
    """

    _engine: Engine

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"{type(self).__name__} is not offered: the engine scales losses; set fp16.loss_scale, or 0 for a dynamic "
            "scale, in the configuration"
        )

    @property
    def cur_scale(self) -> float:
        """The loss scale; 1 except in fp16."""
        return self._engine.loss_scale

    @cur_scale.setter
    def cur_scale(self, scale: float) -> None:
        """Set the scale of the next step, on every rank.

        Raises:
            CallError: a step has begun, whose gradients have the scale of before.
        """
        if self._engine.accumulation.begun:
            raise CallError("the loss scale was set within a step, whose gradients have another; set it after step()")
        self._engine.scaler.scale = float(scale)

    loss_scale = cur_scale

    @property
    def dynamic(self) -> bool:
        """Whether it changes."""
        return self._engine.scaler.dynamic


class LossScaler(LossScalerBase):
    """A scale that stays."""


class DynamicLossScaler(LossScalerBase):
    """A scale that changes, with DeepSpeed's names of its state and settings."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            if name in _STATE:
                return self._engine.scaler.state()[_STATE[name]]
            if name in _SETTINGS:
                return getattr(self._engine.config.fp16, _SETTINGS[name])
            if name == "scale_factor":
                return 2.0
        raise AttributeError(f"the loss scaler has no attribute {name!r}", name=name)


def scaler_of(engine: Engine) -> LossScalerBase:
    """The scaler of an engine, of DeepSpeed's class."""
    kind = DynamicLossScaler if engine.scaler.dynamic else LossScaler
    made = kind.__new__(kind)
    made._engine = engine
    return made


def has_overflow(engine: Engine, partition_gradients: bool = True) -> bool:
    """Whether a gradient of the step that has begun is not finite; a collective, and False between steps.

    Args:
        engine: has the gradients.
        partition_gradients: of no effect, as in DeepSpeed.
    """
    trained = [state for state in engine.states if state.unit.trainable] if engine.accumulation.begun else []
    own = (state.read("gradient", 0, state.unit.shard) for state in trained)
    return engine.ranks.anywhere([any(not part.isfinite().all() for part in own)], engine.device)[0]
