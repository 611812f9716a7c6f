"""chunk_sumsq: the partial sums of a global norm."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.engine.native import CODES, call
from zerobench.engine.ops.exact import tiles
from zerobench.engine.ops.operators import flat, operator


def chunk_sumsq(values: Tensor, chunk: int) -> Tensor:
    """The sum of squares of each chunk, in fp64, by halving: add the second half to the first until one is left.

    Args:
        values: [k * chunk], fp32, bf16 or fp16; squares of finite fp32 values cannot overflow fp64, so if a partial
            sum is not finite, a value is not finite.
        chunk: elements; a power of two.

    Returns:
        [k], fp64, on the device of ``values``.

    Raises:
        ValueError: the chunk is not a power of two or does not divide the length, or the dtype is another one.
    """
    sums: Tensor = _SUMSQ(values, chunk)
    return sums


def definition(values: Tensor, chunk: int) -> Tensor:
    """The specification, in torch."""
    rows = values.view(-1, chunk)
    out = torch.empty(rows.size(0), dtype=torch.float64, device=values.device)
    for part in tiles(rows.size(0), chunk):
        sums = rows[part].double().square()
        width = chunk
        while width > 1:
            width //= 2
            sums = sums[:, :width] + sums[:, width:]
        out[part] = sums[:, 0]
    return out


def check(values: Tensor, chunk: int) -> Tensor:
    """Raise if values and chunk do not match; returns an output of the right shape."""
    flat("values", values, values)
    if chunk < 1 or chunk & (chunk - 1) or values.numel() % chunk:
        raise ValueError(f"chunk: expected a power of two that divides {values.numel()} elements; got {chunk}")
    return values.new_empty(values.numel() // chunk, dtype=torch.float64)


def native(values: Tensor, chunk: int) -> Tensor:
    """Run the kernel."""
    out = values.new_empty(values.numel() // chunk, dtype=torch.float64)
    call("chunk_sumsq", values, values.data_ptr(), CODES[values.dtype], out.numel(), chunk, out.data_ptr())
    return out


_SUMSQ = operator("chunk_sumsq(Tensor values, int chunk) -> Tensor", check=check, definition=definition, native=native)
