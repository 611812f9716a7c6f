"""The norm of a step's gradients: squares added in fp64 by halving, as the contract has it, and other types of norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from zerobench.scenario import NormType


def square_sum(gradients: Iterable[tuple[Tensor, Tensor]], chunk: int) -> float:
    """The sum of squares of all gradients in fp64, in the contract's order.

    Each pair is a gradient, which may be a zero of no dimension, and a tensor that has its shape and memory order.
    """
    sums = [_chunk_sums(gradient, like, chunk) for gradient, like in gradients]
    chunks = torch.cat(sums or [torch.empty(0, dtype=torch.float64)])
    padding = (1 << max(0, len(chunks) - 1).bit_length()) - len(chunks)
    return float(_halved(torch.cat([chunks, chunks.new_zeros(padding)]).view(1, -1)))


def norm_of(gradients: Iterable[Tensor], norm_type: NormType) -> float:
    """The norm of all gradients together, in fp64; 0 if there are none."""
    kind = float(norm_type)
    each = [torch.linalg.vector_norm(g.double(), kind) for g in gradients if g.numel()]
    return float(torch.linalg.vector_norm(torch.stack(each), kind)) if each else 0.0


def _chunk_sums(gradient: Tensor, like: Tensor, chunk: int) -> Tensor:
    """Sum of squares of each chunk, fp64 [chunks]: neighbours are not added, the halves of the chunk are."""
    chunks = -(-like.numel() // chunk)
    flat = gradient.new_zeros(chunks * chunk)
    flat.as_strided(like.size(), like.stride()).copy_(gradient)
    return _halved(flat.view(chunks, chunk).double().square())


def _halved(rows: Tensor) -> Tensor:
    """The sum of each row of [n, power of two]: the second half is added to the first until one is left."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]
