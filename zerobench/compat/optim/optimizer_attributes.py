"""The attributes of DeepSpeed's ZeRO optimizers that scripts read, on the engine's optimizer."""

from __future__ import annotations

import functools
from typing import Any

import torch

from zerobench.compat.optim.loss_scalers import has_overflow, scaler_of
from zerobench.engine import Engine
from zerobench.engine.optim.optimizer import NoState, ZeroOptimizer

_SHARDS = "it has no flat buffers or buckets; read and set states by safe_get_full_fp32_param() and those beside it"
_NORM = "call engine.get_global_grad_norm() after the step"
#: Attributes of DeepSpeed's ZeRO optimizers that scripts reach for, with what to do.
_ABSENT: dict[str, str] = {
    **dict.fromkeys(("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat"), _SHARDS),
    **dict.fromkeys(("fp16_groups", "fp16_groups_flat", "bit16_groups", "bit16_groups_flat"), _SHARDS),
    **dict.fromkeys(("fp16_partitioned_groups", "fp16_partitioned_groups_flat", "averaged_gradients"), _SHARDS),
    **dict.fromkeys(("parallel_partitioned_bit16_groups", "params_in_ipg_bucket", "sub_group_to_group_id"), _SHARDS),
    **dict.fromkeys(("get_fp32_grad_for_param", "grad_accum", "initialize_optimizer_states"), _SHARDS),
    **dict.fromkeys(("scaled_global_norm", "complete_grad_norm_calculation_for_cpu_offload"), _NORM),
    "check_overflow": "read overflow after the step, or call has_overflow() before it",
    "override_loss_scale": "set cur_scale",
}


class _Absent:
    """An attribute that is not there: ``hasattr`` is False, and the error says what to do."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"optimizer.{self.name} is not offered: {self.reason}", name=self.name, obj=instance)


for _name, _reason in _ABSENT.items():
    setattr(ZeroOptimizer, _name, _Absent(_name, _reason))


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
