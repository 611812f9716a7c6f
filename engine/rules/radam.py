"""RAdam (Liu et al., arXiv 1908.03265): Adam that starts as momentum, until the variance of its rate is known.

It has the same roundings as torch's single-tensor RAdam on a CPU with fused multiply-adds and an IEEE 754 square root
(see exact.sqrt). Every scalar is computed in fp64 and rounded to fp32 beforehand:

    g = gradient * factor
    p = master * decay                           decoupled decay; else p = master
    g = fma(l2, p, g)                            L2; else unchanged
    m = lerp(exp_avg, g, weight1)
    v = fma(weight2 * g, g, exp_avg_sq * beta2)
    u = m / correction1 * lr                     correction1 = 1 - beta1^step
    u = u * (1 / (sqrt(v) + eps) * root2) * rectification    if the rectification is defined
    p = p - u
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.ops.averages import decays, lerp, mean_square, with_l2
from zerobench.engine.ops.exact import scalar, single, sqrt
from zerobench.engine.rules.rule import Amount, Beta, Group, TorchRule
from zerobench.engine.section import Section


class RadamParams(Section):
    """``optimizer.params``."""

    lr: Amount = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Amount = 1e-8
    weight_decay: Amount = 0.0
    decoupled_weight_decay: bool = False


@dataclass(frozen=True)
class RadamValues:
    """Hyperparameters of RAdam for one step of one parameter; ``step`` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    step: int

    def rectification(self) -> float | None:
        """The paper's r of this step; None as long as the variance is not tractable."""
        longest = 2 / (1 - self.beta2) - 1
        power = self.beta2**self.step
        length = longest - 2 * self.step * power / (1 - power)
        if length <= 5:
            return None
        # The order of torch's operations; another one may round otherwise.
        return float(((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5)


class Radam(TorchRule[RadamValues]):
    """It keeps Adam's states."""

    types = ("RAdam",)
    params = RadamParams
    clients = (torch.optim.RAdam,)
    lacks = ("maximize", "capturable", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def values(self, group: Group, step: int) -> RadamValues:
        (beta1, beta2), decoupled = group["betas"], group["decoupled_weight_decay"]
        return RadamValues(float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], decoupled, step)

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: RadamValues) -> Sequence[Tensor]:
        m, v = states
        beta1, beta2 = values.beta1, values.beta2
        decay, l2 = decays(values.lr, values.weight_decay, values.decoupled)
        correction1, root2 = 1 - beta1**values.step, (1 - beta2**values.step) ** 0.5
        scalars = single(decay, l2, 1 - beta1, beta2, 1 - beta2, values.eps, correction1, values.lr, root2)
        decay, l2, weight1, beta2, weight2, eps, correction1, lr, root2 = scalars
        p = p * decay
        g = with_l2(g, p, l2)
        m, v = lerp(m, g, weight1), mean_square(v, g, beta2, weight2)
        moved = m / scalar(correction1, m) * lr
        if (rectification := values.rectification()) is not None:
            moved = moved * (scalar(1.0, v) / (sqrt(v) + eps) * root2) * single(rectification)[0]
        return p - moved, m, v
