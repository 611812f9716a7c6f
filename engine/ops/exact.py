"""Arithmetic of the definitions: fused multiply-add and square root, exact on every device, and scalars in fp32."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# A definition processes this many elements at a time, to bound its fp64 intermediates. No bit depends on it.
_TILE = 1 << 20
# The bits of an fp64 number below its exponent.
_FRACTION = (1 << 52) - 1


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


def sqrt64(x: Tensor) -> Tensor:
    """The square root of fp64 values as IEEE 754 defines it; a new fp64 tensor.

    On a CPU ``torch.sqrt`` is MKL's: for 0.6 % of random fp64 values it is the neighbour of the right root. So x is
    scaled by a power of 4 to [1, 4), where all values below are multiples of 2**-104, and the exact error of the root
    decides (Dekker's product). Half an ulp of a root r is 2**-53, and (r + 2**-53)**2 - r**2 = r * 2**-52 + 2**-106.

    Args:
        x: fp64 without negative numbers and subnormals.
    """
    bits = x.view(torch.int64)
    exponent = (bits >> 52) - 1023
    scaled = ((bits & _FRACTION) | ((exponent & 1) + 1023 << 52)).view(torch.float64)
    root = scaled.sqrt().clamp(min=1.0)
    spread = root * (2.0**27 + 1)
    high = spread - (spread - root)
    low = root - high
    product = root * root
    error = (scaled - product) - (((high * high - product) + 2 * (high * low)) + low * low)
    half = root * 2.0**-52
    nearest = root.view(torch.int64) + (error > half).long() - (error <= -half).long()
    result = (nearest + (exponent >> 1 << 52)).view(torch.float64)
    return torch.where((x > 0) & x.isfinite(), result, x)


def single(*values: float) -> list[float]:
    """Each value rounded to fp32; values that are too large become infinite."""
    return array("f", values).tolist()


def scalar(value: float, like: Tensor) -> Tensor:
    """An fp32 tensor of no dimensions on the device of ``like``, as a divisor: every device then divides.

    If the divisor is a Python number, torch multiplies by its reciprocal on CUDA.
    """
    return torch.full((), value, dtype=torch.float32, device=like.device)


def replace(updates: Tensor, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """Write each of ``after`` to its tensor of ``before`` if ``updates``, a bool of one element, is true.

    The device decides, so the host need not know it.
    """
    for old, new in zip(before, after, strict=True):
        old.copy_(torch.where(updates, new, old))


def tiles(n: int, size: int = 1) -> Iterator[slice]:
    """Cut [0, n) into the slices that a definition processes at a time; one index has ``size`` elements."""
    width = max(1, _TILE // size)
    return (slice(start, min(start + width, n)) for start in range(0, n, width))
