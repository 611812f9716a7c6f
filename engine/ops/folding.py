"""fold: the ordered sum of the ranks' contributions."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.engine.native import CODES, call
from zerobench.engine.ops.exact import tiles
from zerobench.engine.ops.operators import flat, operator


def fold(accumulator: Tensor, contributions: Tensor, *, first: bool) -> None:
    """Add ``contributions`` to ``accumulator`` in rank order, elementwise in fp32, and round once at the end.

    Args:
        accumulator: [n], fp32 or the dtype in which gradients are kept between micro-steps; changed in place.
        contributions: [world, n], in the dtype of the message; row r comes from rank r. A single row may be
            the accumulator's own memory.
        first: ignore the accumulator's old value and start the sum from +0; a zero sum is then +0, even if all
            contributions are -0.

    Raises:
        ValueError: shapes, dtypes or devices do not match.
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
    """Raise if shapes, dtypes or devices do not match."""
    flat("accumulator", accumulator, accumulator)
    if contributions.dim() != 2 or not contributions.size(0):
        raise ValueError(f"contributions: expected [world, n]; got shape {tuple(contributions.shape)}")
    flat("a row of contributions", contributions[0], accumulator)


def native(accumulator: Tensor, contributions: Tensor, first: bool) -> None:
    """Run the kernel."""
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
