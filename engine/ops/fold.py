"""fold: the ordered sum of the ranks' contributions."""

from __future__ import annotations

import torch
from torch import Tensor


def fold(accumulator: Tensor, contributions: Tensor, *, first: bool) -> None:
    """Add ``contributions`` to ``accumulator`` in rank order, in fp32, element by element, rounding once at the end.

    Args:
        accumulator: [n], fp32 or the dtype in which gradients are kept between micro-steps; changed in place.
        contributions: [world, n], the dtype that travelled; row r came from rank r.
        first: the accumulator's old value does not count; the sum starts from +0, which makes the sign of a zero sum
            positive whatever the signs of the zeros that went in.
    """
    total = accumulator if accumulator.dtype == torch.float32 else torch.empty_like(accumulator, dtype=torch.float32)
    rows = iter(contributions)
    if first:
        torch.add(next(rows).float(), 0.0, out=total)
    elif total is not accumulator:
        total.copy_(accumulator)
    for row in rows:
        total.add_(row)
    if total is not accumulator:
        accumulator.copy_(total)
