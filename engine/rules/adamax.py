"""Adamax (Kingma and Ba, arXiv 1412.6980, section 7.1): Adam with the infinity norm of the gradients.

It has the same roundings as torch's single-tensor Adamax on a CPU with fused multiply-adds. Every scalar is computed in
fp64 and rounded to fp32 beforehand:

    g = gradient * factor
    g = fma(l2, master, g)                  with weight decay; else unchanged
    m = lerp(exp_avg, g, weight)            weight = 1 - beta1
    u = max(exp_inf * beta2, |g| + eps)
    p = master + (step_size * m) / u        step_size = -lr / (1 - beta1^step)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.ops.averages import lerp, with_l2
from zerobench.engine.ops.exact import single
from zerobench.engine.rules.rule import Amount, Beta, Group, TorchRule
from zerobench.engine.section import Section


class AdamaxParams(Section):
    """``optimizer.params``."""

    lr: Amount = 2e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Amount = 1e-8
    weight_decay: Amount = 0.0


@dataclass(frozen=True)
class AdamaxValues:
    """Hyperparameters of Adamax for one step of one parameter; ``step`` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float  # L2: added to the gradient
    step: int


class Adamax(TorchRule[AdamaxValues]):
    """It keeps the mean and the infinity norm."""

    types = ("Adamax",)
    params = AdamaxParams
    clients = (torch.optim.Adamax,)
    lacks = ("maximize", "capturable", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("exp_avg", "exp_inf")

    def values(self, group: Group, step: int) -> AdamaxValues:
        beta1, beta2 = group["betas"]
        return AdamaxValues(float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], step)

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: AdamaxValues) -> Sequence[Tensor]:
        exp_avg, exp_inf = states
        rate = -(values.lr / (1 - values.beta1**values.step))
        scalars = single(values.weight_decay, 1 - values.beta1, values.beta2, values.eps, rate)
        l2, weight, beta2, eps, step_size = scalars
        g = with_l2(g, p, l2)
        mean, norm = lerp(exp_avg, g, weight), torch.maximum(exp_inf * beta2, g.abs() + eps)
        return p + (step_size * mean) / norm, mean, norm
