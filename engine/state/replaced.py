"""Replaced data: a caller sets ``parameter.data``, and the engine takes the new values over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, Protocol, TypeVar

from torch import Tensor

from zerobench.engine.layout import Slot


class _Whole(Protocol):
    """What has the memory of whole parameters."""

    full: Tensor


T = TypeVar("T", bound=_Whole)


def take_over(places: Iterable[tuple[T, Slot]], leave_converted: bool = False) -> list[tuple[T, Slot]]:
    """Copy the values of replaced data into ``full``, and make the parameters views of it again.

    ``p.data = p.data.clamp(-1, 1)`` and ``torch.nn.utils.vector_to_parameters`` give a parameter other memory than the
    engine's, in which it would not be trained. Nothing is communicated.

    Args:
        places: the parameters, all of which are whole; one that is sharded refuses new data by itself.
        leave_converted: leave new data of another shape, dtype or device as they are, in place of the error.

    Returns:
        Those whose data were replaced.

    Raises:
        RuntimeError: new data have another shape, dtype or device.
    """
    found = []
    for each, slot in places:
        if slot.replaced(each.full):
            if _fits(slot, each.full):
                found.append((each, slot))
            elif not leave_converted:
                _refuse(slot, each.full)
    # New data may be that of another parameter, as in an exchange of two.
    values = [slot.parameter.data.clone() for _, slot in found]
    for (each, slot), new in zip(found, values, strict=True):
        view = slot.view(each.full)
        view.copy_(new)
        slot.parameter.data = view
    return found


def _fits(slot: Slot, full: Tensor) -> bool:
    new = slot.parameter
    return (new.shape, new.dtype, new.device) == (slot.shape, full.dtype, full.device)


def _refuse(slot: Slot, full: Tensor) -> NoReturn:
    new = slot.parameter
    raise RuntimeError(
        f"the data of parameter {slot.name!r} was replaced after initialize(), as by Module.half(): it is {new.dtype} "
        f"{tuple(new.shape)} on {new.device}, and the engine trains {full.dtype} {tuple(slot.shape)} on {full.device}; "
        "convert the model before, or enable bf16 or fp16"
    )
