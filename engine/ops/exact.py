"""Arithmetic of the definitions: fused multiply-add and square root, exact on every device, and scalars in fp32."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import torch
from torch import Tensor

# A definition processes this many elements at a time, to bound its fp64 intermediates. No bit depends on it.
_TILE = 1 << 20


def fma(a: Tensor | float, b: Tensor, c: Tensor) -> Tensor:
    """``a * b + c`` of fp32 values rounded once, as IEEE 754 defines fusedMultiplyAdd; a new fp32 tensor.

    The product is exact in fp64. The fp64 sum is rounded to odd: if it is inexact (TwoSum finds the error, Knuth,
    TAOCP vol. 2, 4.2.2) and its last bit is even, the neighbour towards the exact value replaces it. If a sum rounded
    to odd has two bits more than the target, rounding it to the target adds no second error (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE TC 57(4), 2008).

    Args:
        a: fp32, or a number that is exact in fp32.
        b: fp32.
        c: fp32, of the shape of ``a * b``.
    """
    product = b.double() * (a.double() if isinstance(a, Tensor) else a)
    addend = c.double()
    total = product + addend
    seen = total - product
    error = (product - (total - seen)) + (addend - seen)
    bits = total.view(torch.int64)
    inexact = (error != 0) & total.isfinite()
    away = (error > 0) == (total > 0)
    step = torch.where(away, 1, -1).masked_fill_(~inexact | (bits & 1 == 1), 0)
    return (bits + step).view(torch.float64).float()


def sqrt(x: Tensor) -> Tensor:
    """The square root of fp32 values as IEEE 754 defines it: rounded to nearest even; a new fp32 tensor.

    On a CPU ``torch.sqrt`` is MKL's and differs: for 0.65 % of random fp32 values the last bit is wrong. The error of
    the fp64 root is less than an fp64 ulp, 2**-52 of its value. The root of an fp32 value is 2**-51 away from every
    point at which rounding to fp32 changes (the middle m of two neighbours has 25 bits and is odd, so as integers x
    and m * m < 2**50 differ by at least 1).
    """
    return x.double().sqrt().float()


def single(*values: float) -> list[float]:
    """Each value rounded to fp32; values that are too large become infinite."""
    return array("f", values).tolist()


def scalar(value: float, like: Tensor) -> Tensor:
    """An fp32 tensor of no dimensions on the device of ``like``, as a divisor: every device then divides.

    If the divisor is a Python number, torch multiplies by its reciprocal on CUDA.
    """
    return torch.full((), value, dtype=torch.float32, device=like.device)


def tiles(n: int, size: int = 1) -> Iterator[slice]:
    """Cut [0, n) into the slices that a definition processes at a time; one index has ``size`` elements."""
    width = max(1, _TILE // size)
    return (slice(start, min(start + width, n)) for start in range(0, n, width))
