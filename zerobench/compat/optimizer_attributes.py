"""The attributes of DeepSpeed's ZeRO optimizers that scripts read, on the engine's optimizer."""

from __future__ import annotations

import functools
from typing import Any

import torch

from zerobench.compat.loss_scalers import has_overflow, scaler_of
from zerobench.engine import Engine
from zerobench.engine.optim.optimizer import NoState


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

    inner.state = NoState(None, inner.state)
    optimizer.__dict__ |= {
        "optimizer": inner,
        "loss_scaler": scaler_of(engine),
        "has_overflow": functools.partial(has_overflow, engine),
        "refresh_fp32_params": lambda: None,  # the masters follow each edit of a parameter
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
