"""Setting: whole states and gradients of one parameter, set by a client."""

from __future__ import annotations

from torch import Tensor, nn

from zerobench.engine.checkpoint.pieces import MASTER, in_memory_order
from zerobench.engine.engine import Engine
from zerobench.engine.inspect import check_state, locate
from zerobench.engine.layout import Slot
from zerobench.engine.state.unit import UnitState


def safe_set_full_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Set the master weight, and the parameter to its rounding.

    ``value`` is the whole fp32 value, the same on every rank; each rank keeps its part, and nothing is communicated.

    Raises:
        RuntimeError: the parameter is frozen.
        ValueError: the value has another shape.
    """
    _set_full(param, MASTER, value)


def safe_set_full_optimizer_state(param: nn.Parameter, value: Tensor, optim_state_key: str) -> None:
    """Set an optimizer state such as ``exp_avg``. ``value`` is whole, and the same on every rank.

    Raises:
        KeyError: the optimizer has no such state.
        RuntimeError: the parameter is frozen.
        ValueError: the value has another shape.
    """
    _set_full(param, optim_state_key, value)


def safe_set_full_grad(param: nn.Parameter, value: Tensor) -> None:
    """Set the mean gradient, between the last ``backward()`` of a step and its ``step()``.

    If the sum is offloaded, it is rounded to the dtype in which it travels to the host.
    """
    engine, state, slot = trained(param)
    values = in_memory_order(checked(param, slot, value)) * (engine.leaves * engine.loss_scale)
    if engine.stores.steps_off_device(state.unit):
        lo, hi = slot.within(state.own)
        set_offloaded(state, lo, values[lo - slot.start : hi - slot.start])
        engine.stores.settle()
        values = state.optimizer_store.rounded(values)
    else:
        whole = state.gradient.numel() == state.unit.padded
        part, offset = (state.gradient, 0) if whole else (state.own_gradient, state.own.start)
        lo, hi = slot.within(slice(offset, offset + part.numel()))
        if lo < hi:
            part[lo - offset : hi - offset].copy_(values[lo - slot.start : hi - slot.start])
    engine.read_cache.replace(state, "gradient", slot.start, values)


def set_offloaded(state: UnitState, start: int, values: Tensor) -> None:
    """Replace the unit's elements from ``start`` on of this rank's gradient sum, whose chunks its store takes again."""
    if not values.numel():
        return
    store, chunk = state.optimizer_store, state.unit.chunk
    first = start - state.own.start
    stop = first + values.numel()
    begin = first // chunk * chunk
    total = state.read("gradient", begin, -(-stop // chunk) * chunk)
    total[first - begin : stop - begin].copy_(values)
    store.retake(state.portion, begin, total)
    if state.own_gradient.numel() == state.unit.shard:
        # the step takes it from there if its last backward is still to come, or was not known to be the last
        state.own_gradient[first:stop].copy_(store.rounded(total[first - begin : stop - begin]))


def _set_full(param: nn.Parameter, kind: str, value: Tensor) -> None:
    engine, state, slot = trained(param)
    check_kind(engine, kind)
    values = in_memory_order(checked(param, slot, value))
    set_part(engine, state, kind, slot.start, values, everywhere=True)
    if kind == MASTER:
        set_parameter(engine, state, slot, values)


def set_part(
    engine: Engine, state: UnitState, kind: str, start: int, values: Tensor, *, everywhere: bool = False
) -> None:
    """Set those of a state's elements, from ``start`` of the unit on, that this rank keeps; parameters stay.

    With ``everywhere`` every rank sets the same values, so that later readings need no other rank for them.
    """
    lo, hi = max(start, state.extent.start), min(start + values.numel(), state.extent.stop)
    if lo < hi:
        state.optimizer_store.write(state.portion, kind, lo - state.extent.start, values[lo - start : hi - start])
        engine.stores.settle()
    if everywhere:
        engine.read_cache.replace(state, kind, start, values)
    else:
        engine.read_cache.clear()


def set_parameter(engine: Engine, state: UnitState, slot: Slot, values: Tensor) -> None:
    """Set the parameter, or this rank's shard of it, to the rounding of the whole values."""
    if state.sharded:
        state.set_shard(slot, values)
    if not state.sharded or (engine.unsharder is not None and engine.unsharder.shows(state)):
        state.full[slot.start : slot.start + slot.numel].copy_(values)  # that of a context, at whose end it stays
    elif engine.unsharder is not None:
        engine.unsharder.reshard_all()


def trained(param: nn.Parameter) -> tuple[Engine, UnitState, Slot]:
    """The engine, unit and slot of a parameter that trains.

    Raises:
        RuntimeError: it is frozen.
    """
    engine, state, slot = locate(param)
    if state is None or not state.unit.trainable:
        raise RuntimeError(f"a parameter of shape {tuple(param.shape)} is frozen and has no state to set")
    return engine, state, slot


def check_kind(engine: Engine, kind: str) -> None:
    """Demand that the engine's optimizer has this state, or that it is the master weight.

    Raises:
        KeyError: there is no such state.
    """
    if kind != MASTER:
        check_state(engine, kind)


def checked(param: nn.Parameter, slot: Slot, value: Tensor) -> Tensor:
    """The value in the parameter's strides.

    Raises:
        ValueError: it has another shape.
    """
    if value.shape != param.shape:
        raise ValueError(f"{slot.name!r} has shape {tuple(param.shape)}, and the value has {tuple(value.shape)}")
    return value.new_empty_strided(value.shape, slot.stride).copy_(value)
