"""The steps that optimizers share, with the roundings of torch's operations on a CPU (see update.py)."""

from __future__ import annotations

from torch import Tensor

from zerobench.engine.ops.exact import fma, scalar


def decays(lr: float, weight_decay: float, decoupled: bool) -> tuple[float, float]:
    """The factor of the weights, which is 1 unless the decay is decoupled (AdamW), and the L2 that the gradient gets,
    which is 0 if it is."""
    return (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)


def with_l2(gradient: Tensor, master: Tensor, l2: float) -> Tensor:
    """``gradient + l2 * master``, and the gradient itself without decay."""
    return fma(l2, master, gradient) if l2 != 0 else gradient


def lerp(average: Tensor, value: Tensor, weight: float) -> Tensor:
    """``torch.lerp``: towards the value by this weight, from the nearer end."""
    if weight < 0.5:
        return fma(weight, value - average, average)
    return fma(scalar(weight - 1, value), value - average, value)


def mean_square(average: Tensor, value: Tensor, decay: float, weight: float) -> Tensor:
    """``average * decay + weight * value * value``, the last product and the sum in one rounding."""
    return fma(weight * value, value, average * decay)
