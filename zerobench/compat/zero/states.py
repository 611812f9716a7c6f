"""Reading and writing the states of one sharded parameter, by DeepSpeed's names.

Functions with ``full`` in their name are collectives and take or return the whole state. Those with ``local`` take or
return the 1-dimensional part that this rank owns, which may be empty; as with DeepSpeed, they need stage 3. All return
None for a frozen parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from zerobench.engine import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
)
from zerobench.engine.checkpoint.pieces import MASTER, in_memory_order
from zerobench.engine.inspect import locate
from zerobench.engine.layout import Slot
from zerobench.engine.registry import engine_of
from zerobench.engine.setting import check_kind, set_offloaded, set_parameter, set_part, trained

__all__ = [
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "safe_update_full_grad_vectorized",
]


def safe_get_local_fp32_param(param: nn.Parameter) -> Tensor | None:
    """This rank's part of the master weight."""
    return _get_local(param, MASTER)


def safe_get_local_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """This rank's part of an optimizer state."""
    return _get_local(param, optim_state_key)


def safe_get_local_grad(param: nn.Parameter) -> Tensor | None:
    """This rank's part of the mean gradient."""
    _check_stage(param)
    engine, state, slot = locate(param)
    if state is None or not state.unit.trainable:
        return None
    lo, hi = slot.within(state.own)
    part = state.read("gradient", lo - state.own.start, hi - state.own.start)
    return part.float() * (1 / (engine.leaves * engine.loss_scale))


def safe_set_local_grad(param: nn.Parameter, value: Tensor) -> None:
    """Set this rank's part of the mean gradient, at the same time as safe_set_full_grad."""
    _check_stage(param)
    engine, state, slot = trained(param)
    lo, hi = slot.within(state.own)
    _check_local(slot, value, hi - lo)
    values = value.flatten() * (engine.leaves * engine.loss_scale)
    if engine.stores.steps_off_device(state.unit):
        set_offloaded(state, lo, values)
    else:
        state.own_gradient[lo - state.own.start : hi - state.own.start].copy_(values)
    engine.read_cache.clear()


def safe_update_full_grad_vectorized(
    param_list: Iterable[nn.Parameter], update_func: Callable[[Tensor, nn.Parameter], Tensor]
) -> None:
    """Set the mean gradient of each parameter to ``update_func(gradient, parameter)``."""
    for param in param_list:
        gradient = safe_get_full_grad(param)
        if gradient is not None:
            safe_set_full_grad(param, update_func(gradient, param))


def safe_set_local_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Set this rank's part of the master weight; a collective, because parameters follow it."""
    _set_local(param, MASTER, value)


def safe_set_local_optimizer_state(param: nn.Parameter, value: Tensor, optim_state_key: str) -> None:
    """Set this rank's part of an optimizer state."""
    _set_local(param, optim_state_key, value)


def _check_stage(param: nn.Parameter) -> None:
    """Demand stage 3: at stage 0 all ranks step the whole parameter, and one that set its part would leave the others.

    Raises:
        RuntimeError: the stage is below 3.
    """
    stage = engine_of(param).config.zero_optimization.stage
    if stage < 3:
        raise RuntimeError(
            f"this rank's part of a parameter exists at stage 3 only, and the engine has stage {stage}; use the "
            "functions with 'full' in their name, such as safe_get_full_fp32_param"
        )


def _check_local(slot: Slot, value: Tensor, owned: int) -> None:
    if value.numel() != owned:
        raise ValueError(f"this rank owns {owned} elements of {slot.name!r}, and {value.numel()} were given")


def _get_local(param: nn.Parameter, kind: str) -> Tensor | None:
    _check_stage(param)
    engine, state, slot = locate(param)
    if state is None or not state.unit.trainable:
        return None
    check_kind(engine, kind)
    lo, hi = slot.within(state.own)
    return state.optimizer_store.read(state.portion, kind, lo - state.extent.start, hi - state.extent.start)


def _set_local(param: nn.Parameter, kind: str, value: Tensor) -> None:
    _check_stage(param)
    engine, state, slot = trained(param)
    check_kind(engine, kind)
    lo, hi = slot.within(state.own)
    _check_local(slot, value, hi - lo)
    set_part(engine, state, kind, lo, value.flatten())
    if kind == MASTER:
        whole = safe_get_full_fp32_param(param)
        assert whole is not None
        set_parameter(engine, state, slot, in_memory_order(whole))
