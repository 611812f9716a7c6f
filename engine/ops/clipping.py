"""clip_factors: the factor of each parameter's gradient, decided on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zerobench.engine.native import call
from zerobench.engine.ops.exact import sqrt64
from zerobench.engine.ops.operators import operator

#: The dtypes of ``total``, ``overflow`` and ``active``.
_DTYPES = {"total": torch.float64, "overflow": torch.bool, "active": torch.bool}


def clip_factors(total: Tensor, overflow: Tensor, active: Tensor, clip: float, divisor: float) -> Tensor:
    """The factor that takes the mean of summed gradients, undoes the loss scale and clips; NaN forbids the update.

    It is computed in fp64 and rounded once:

        norm = sqrt(total) / divisor
        factor = min(1, clip / (norm + 1e-6)) / divisor      without clipping 1 / divisor

    Args:
        total: [1], fp64, the sum of squares of the summed gradients.
        overflow: [1], bool: no parameter is updated.
        active: [n], bool: the parameters that are updated.
        clip: the largest norm; 0 does not clip.
        divisor: the leaves times the loss scale.

    Returns:
        [n], fp32, by parameter: its factor, or NaN if it is not updated.

    Raises:
        ValueError: shapes, dtypes or devices do not match.
    """
    factors: Tensor = _CLIP(total, overflow, active, clip, divisor)
    return factors


def definition(total: Tensor, overflow: Tensor, active: Tensor, clip: float, divisor: float) -> Tensor:
    """The specification, in torch. Divisors are tensors: on CUDA torch multiplies by a number's reciprocal."""
    one, divisors = torch.ones_like(total), torch.full_like(total, divisor)
    limited = torch.full_like(total, clip) / (sqrt64(total) / divisors + 1e-6)
    coefficient = torch.where(limited < 1, limited, one) if clip > 0 else one
    factor = (coefficient / divisors).float()
    return torch.where(active & ~overflow, factor, math.nan)


def check(total: Tensor, overflow: Tensor, active: Tensor, clip: float, divisor: float) -> Tensor:
    """Raise if shapes, dtypes or devices do not match; returns an output of the right shape."""
    given = {"total": total, "overflow": overflow, "active": active}
    for (name, tensor), size in zip(given.items(), (1, 1, active.numel()), strict=True):
        if tensor.shape != (size,) or not tensor.is_contiguous():
            raise ValueError(f"{name}: expected shape ({size},), contiguous; got {tuple(tensor.shape)}")
        if tensor.dtype != _DTYPES[name] or tensor.device != total.device:
            wanted = f"{_DTYPES[name]} on {total.device}"
            raise ValueError(f"{name}: expected {wanted}; got {tensor.dtype} on {tensor.device}")
    return torch.empty(active.numel(), dtype=torch.float32, device=total.device)


def native(total: Tensor, overflow: Tensor, active: Tensor, clip: float, divisor: float) -> Tensor:
    """Run the kernel."""
    factors = check(total, overflow, active, clip, divisor)
    pointers = total.data_ptr(), overflow.data_ptr(), active.data_ptr()
    call("clip_factors", total, *pointers, active.numel(), clip, divisor, factors.data_ptr())
    return factors


_CLIP = operator(
    "clip_factors(Tensor total, Tensor overflow, Tensor active, float clip, float divisor) -> Tensor",
    check=check,
    definition=definition,
    native=native,
)
