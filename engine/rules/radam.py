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

from zerobench.engine.ops.averages import lerp, mean_square, with_l2
from zerobench.engine.ops.exact import replace, scalar, single, sqrt, tiles
from zerobench.engine.rules.rule import Amount, Beta, Group, Rule
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


class Radam(Rule[RadamValues]):
    """It keeps Adam's states."""

    types = ("RAdam",)
    params = RadamParams
    clients = (torch.optim.RAdam,)
    refused = ("maximize", "capturable", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def values(self, group: Group, step: int) -> RadamValues:
        (beta1, beta2), decoupled = group["betas"], group["decoupled_weight_decay"]
        return RadamValues(float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], decoupled, step)

    def update(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factor: Tensor,
        values: RadamValues,
    ) -> None:
        beta1, beta2, step = values.beta1, values.beta2, values.step
        decay = 1 - values.lr * values.weight_decay if values.decoupled else 1.0
        l2 = 0.0 if values.decoupled else values.weight_decay
        rectified, root2 = values.rectification(), (1 - beta2**step) ** 0.5
        scalars = single(decay, l2, 1 - beta1, beta2, 1 - beta2, values.eps, 1 - beta1**step, values.lr, root2)
        last = None if rectified is None else single(rectified)[0]
        definition(master, gradient, states, copy, factor, last, *scalars)


def definition(
    master: Tensor,
    gradient: Tensor,
    states: Sequence[Tensor],
    copy: Tensor | None,
    factor: Tensor,
    rectification: float | None,
    decay: float,
    l2: float,
    weight1: float,
    beta2: float,
    weight2: float,
    eps: float,
    correction1: float,
    lr: float,
    root2: float,
) -> None:
    """RAdam in torch, on every device."""
    updates = ~factor.isnan()
    for part in tiles(master.numel()):
        p, g, m, v = before = [master[part], gradient[part].float() * factor, *(state[part] for state in states)]
        p = p * decay
        g = with_l2(g, p, l2)
        m, v = lerp(m, g, weight1), mean_square(v, g, beta2, weight2)
        moved = m / scalar(correction1, m) * lr
        if rectification is not None:
            moved = moved * (scalar(1.0, v) / (sqrt(v) + eps) * root2) * rectification
        replace(updates, (before[0], *before[2:]), (p - moved, m, v))
        if copy is not None:
            copy[part].copy_(before[0])
