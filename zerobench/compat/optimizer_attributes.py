"""The attributes of DeepSpeed's ZeRO optimizers that scripts read, on the engine's optimizer."""

from __future__ import annotations

from typing import Any

import torch

from zerobench.compat.errors import CallError
from zerobench.engine import Engine


class BasicOptimizer(torch.optim.Optimizer):
    """``optimizer.optimizer``: the parameter groups of the engine's optimizer, for schedules and for reading."""

    _opt_called = True  # torch's schedulers warn if they are stepped before it; the engine steps in order

    def __init__(self, of: torch.optim.Optimizer) -> None:
        super().__init__(of.param_groups, dict(of.defaults))
        self.param_groups = of.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Refuse: only the engine has the gradients of all ranks."""
        raise RuntimeError("call engine.step(): the engine has the gradients and the state of this optimizer")

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


#: By DeepSpeed's name of a dynamic scaler's state or setting, that of the engine.
_STATE = {"cur_iter": "step", "last_overflow_iter": "last_overflow", "cur_hysteresis": "hysteresis"}
_SETTINGS = {
    "scale_window": "loss_scale_window",
    "min_scale": "min_loss_scale",
    "delayed_shift": "hysteresis",
    "consecutive_hysteresis": "consecutive_hysteresis",
}


class ScalerOf:
    """``optimizer.loss_scaler``: the engine's loss scale as it is now, with DeepSpeed's state of a dynamic one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and self.dynamic:
            if name in _STATE:
                return self._engine.scaler.state()[_STATE[name]]
            if name in _SETTINGS:
                return getattr(self._engine.config.fp16, _SETTINGS[name])
            if name == "scale_factor":
                return 2.0
        raise AttributeError(f"the loss scaler has no attribute {name!r}", name=name)

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


def add_attributes(engine: Engine, client: Any) -> torch.optim.Optimizer:
    """Give the engine's optimizer DeepSpeed's attributes.

    Args:
        engine: has the optimizer.
        client: the optimizer that the caller gave, whose groups are those of the engine's; else anything.

    Returns:
        The optimizer inside it.
    """
    optimizer, config = engine.optimizer, engine.config
    groups, world = optimizer.param_groups, engine.ranks.world
    own = isinstance(client, torch.optim.Optimizer) and client is not optimizer
    inner: torch.optim.Optimizer = client if own else BasicOptimizer(optimizer)

    def get_lr() -> Any:
        return groups[0]["lr"]

    def set_lr(lr: float) -> None:
        for group in groups:
            group["lr"] = lr

    optimizer.__dict__ |= {
        "optimizer": inner,
        "loss_scaler": ScalerOf(engine),
        "get_lr": get_lr,
        "set_lr": set_lr,
        "clip_grad": config.gradient_clipping,
        "dtype": config.dtype,
        "dynamic_loss_scale": engine.scaler.dynamic,
        "custom_loss_scaler": False,
        "gradient_accumulation_steps": engine.gradient_accumulation_steps,
        "param_names": {parameter: name for name, parameter in engine.module.named_parameters()},
        "partition_count": world if config.zero_optimization.stage == 3 else [world] * len(groups),
    }
    return inner
