"""tree_sum: a sum in an order that depends on the number of terms alone."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.engine.native import call
from zerobench.engine.ops.operators import flat, operator

_FP64 = (torch.float64,)


def tree_sum(values: Tensor) -> Tensor:
    """The sum by halving: add the second half to the first until one value is left.

    Zeros first make the number of values a power of two. They change no sum of values that are not -0.

    Args:
        values: [n], fp64.

    Returns:
        [1], fp64, on the device of ``values``; 0 if n is 0.

    Raises:
        ValueError: the values are not flat, contiguous and fp64.
    """
    total: Tensor = _TREE_SUM(values)
    return total


def definition(values: Tensor) -> Tensor:
    """The specification, in torch."""
    width = _power(values.numel())
    sums = values.new_zeros(width)
    sums[: values.numel()] = values
    while width > 1:
        width //= 2
        sums = sums[:width] + sums[width:]
    return sums


def check(values: Tensor) -> Tensor:
    """Raise if the values are of another shape or dtype; returns an output of the right shape."""
    flat("values", values, values, _FP64)
    return values.new_empty(1)


def native(values: Tensor) -> Tensor:
    """Run the kernel."""
    sums = values.new_empty(max(1, _power(values.numel()) // 2))
    call("tree_sum", values, values.data_ptr(), values.numel(), sums.data_ptr())
    return sums[:1].clone()


def _power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


_TREE_SUM = operator("tree_sum(Tensor values) -> Tensor", check=check, definition=definition, native=native)
