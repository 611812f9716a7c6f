"""Adadelta (Zeiler, arXiv 1212.5701): each element's step has the size of its earlier steps.

It has the same roundings as torch's single-tensor Adadelta on a CPU with fused multiply-adds and an IEEE 754 square
root (see exact.sqrt). Every scalar is computed in fp64 and rounded to fp32 beforehand:

    g = gradient * factor
    g = fma(l2, master, g)                       with weight decay; else unchanged
    v = fma(weight * g, g, square_avg * rho)     weight = 1 - rho
    d = sqrt(acc_delta + eps) / sqrt(v + eps) * g
    a = fma(weight * d, d, acc_delta * rho)
    p = fma(-lr, d, master)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.ops.averages import mean_square, with_l2
from zerobench.engine.ops.exact import fma, single, sqrt
from zerobench.engine.rules.rule import Amount, Group, TorchRule
from zerobench.engine.section import Section


class AdadeltaParams(Section):
    """``optimizer.params``."""

    lr: Amount = 1.0
    rho: Amount = 0.9
    eps: Amount = 1e-6
    weight_decay: Amount = 0.0


@dataclass(frozen=True)
class AdadeltaValues:
    """Hyperparameters of Adadelta."""

    lr: float
    rho: float
    eps: float
    weight_decay: float  # L2: added to the gradient


class Adadelta(TorchRule[AdadeltaValues]):
    """It keeps the mean squares of the gradients and of the steps."""

    types = ("Adadelta",)
    params = AdadeltaParams
    clients = (torch.optim.Adadelta,)
    lacks = ("maximize", "capturable", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("square_avg", "acc_delta")

    def values(self, group: Group, step: int) -> AdadeltaValues:
        return AdadeltaValues(float(group["lr"]), group["rho"], group["eps"], group["weight_decay"])

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: AdadeltaValues) -> Sequence[Tensor]:
        square_avg, acc_delta = states
        scalars = single(values.weight_decay, values.rho, 1 - values.rho, values.eps, -values.lr)
        l2, rho, weight, eps, step_size = scalars
        g = with_l2(g, p, l2)
        squares = mean_square(square_avg, g, rho, weight)
        step = sqrt(acc_delta + eps) / sqrt(squares + eps) * g
        return fma(step_size, step, p), squares, mean_square(acc_delta, step, rho, weight)
