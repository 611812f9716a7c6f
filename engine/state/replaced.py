"""Replaced data: a caller sets ``parameter.data``, and the engine takes the new values over."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from zerobench.engine.layout import Slot
from zerobench.engine.state.unit import UnitState


def take_over(places: Iterable[tuple[UnitState, Slot]], leave_converted: bool = False) -> list[tuple[UnitState, Slot]]:
    """Copy the values of replaced data into their units, and make the parameters views of the units again.

    ``p.data = p.data.clamp(-1, 1)`` and ``torch.nn.utils.vector_to_parameters`` give a parameter other memory than the
    engine's, in which it would not be trained. Nothing is communicated. Sharded parameters that are not whole refuse
    new data by themselves.

    Args:
        places: the parameters.
        leave_converted: leave new data of another shape, dtype or device as they are, in place of the error.

    Returns:
        Those whose data were replaced.

    Raises:
        RuntimeError: new data have another shape, dtype or device.
    """
    found = [(state, slot) for state, slot in places if state.bound and slot.replaced(state.full)]
    # New data may be that of another parameter, as in an exchange of two.
    if leave_converted:
        found = [(state, slot) for state, slot in found if _fits(state, slot)]
    values = [_checked(state, slot).clone() for state, slot in found]
    for (state, slot), new in zip(found, values, strict=True):
        view = slot.view(state.full)
        view.copy_(new)
        slot.parameter.data = view
    return found


def _fits(state: UnitState, slot: Slot) -> bool:
    new, own = slot.parameter.data, slot.view(state.full)
    return (new.shape, new.dtype, new.device) == (own.shape, own.dtype, own.device)


def _checked(state: UnitState, slot: Slot) -> Tensor:
    new, own = slot.parameter.data, slot.view(state.full)
    if not _fits(state, slot):
        raise RuntimeError(
            f"the data of parameter {slot.name!r} was replaced after initialize(), as by Module.half(): it is "
            f"{new.dtype} {tuple(new.shape)} on {new.device}, and the engine trains {own.dtype} {tuple(own.shape)} on "
            f"{own.device}; convert the model before, or enable bf16 or fp16"
        )
    return new
