"""fold: the ordered sum of the ranks' contributions."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.engine.native import CODES, call
from zerobench.engine.ops.exact import tiles
from zerobench.engine.ops.operators import flat, operator


def fold(accumulator: Tensor, contributions: Tensor, *, first: bool) -> None:
    """Add ``contributions`` to ``accumulator`` in rank order, in fp32, element by element, rounding once at the end.

    Args:
        accumulator: [n], fp32 or the dtype in which gradients are kept between micro-steps; changed in place.
        contributions: [world, n], the dtype that travelled; row r came from rank r.
        first: the accumulator's old value does not count; the sum starts from +0, which makes the sign of a zero sum
            positive whatever the signs of the zeros that went in.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together.
    """
    _FOLD(accumulator, contributions, first)


def definition(accumulator: Tensor, contributions: Tensor, first: bool) -> None:
    """The specification, in torch."""
    for part in tiles(accumulator.numel()):
        before = accumulator[part]
        total = torch.zeros_like(before, dtype=torch.float32) if first else before.float()
        for row in contributions:
            total = total + row[part]
        before.copy_(total)


def check(accumulator: Tensor, contributions: Tensor, first: bool) -> None:
    """Raise where shapes, dtypes or devices do not fit together."""
    flat("accumulator", accumulator, accumulator)
    if contributions.dim() != 2 or not len(contributions):
        raise ValueError(f"contributions: expected [world, n]; got shape {tuple(contributions.shape)}")
    flat("a row of contributions", contributions[0], accumulator)


def native(accumulator: Tensor, contributions: Tensor, first: bool) -> None:
    """By the kernel."""
    call(
        "fold",
        accumulator,
        accumulator.data_ptr(),
        CODES[accumulator.dtype],
        contributions.data_ptr(),
        CODES[contributions.dtype],
        contributions.size(0),
        contributions.size(1),
        contributions.stride(0),
        first,
    )


_FOLD = operator(
    "fold(Tensor(a!) accumulator, Tensor contributions, bool first) -> ()",
    check=check,
    definition=definition,
    native=native,
)
