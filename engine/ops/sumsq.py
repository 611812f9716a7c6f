"""chunk_sumsq: the partial sums of which a global norm is folded."""

from __future__ import annotations

import torch
from torch import Tensor

# Elements worked on at a time on a CPU, which bounds the fp64 intermediates. No bit depends on it.
_TILE = 1 << 20


def chunk_sumsq(values: Tensor, chunk: int) -> Tensor:
    """The sum of squares of each chunk, in fp64, by halving: the second half is added to the first until one is left.

    Args:
        values: [k * chunk], any floating dtype; squares of finite fp32 values cannot overflow fp64, so a partial sum
            that is not finite means that a value was not.
        chunk: elements; a power of two.

    Returns:
        [k], fp64, on the device of ``values``.
    """
    rows = values.view(-1, chunk)
    out = torch.empty(rows.size(0), dtype=torch.float64, device=values.device)
    tile = max(1, _TILE // chunk) if values.device.type == "cpu" else max(1, rows.size(0))
    for start in range(0, rows.size(0), tile):
        sums = rows[start : start + tile].double()
        sums.mul_(sums)
        width = chunk
        while width > 1:
            width //= 2
            sums = sums[:, :width] + sums[:, width:]
        out[start : start + tile] = sums[:, 0]
    return out
