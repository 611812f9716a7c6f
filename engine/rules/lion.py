"""Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): a step has the same size in every element.

Every operation is rounded by itself, so a machine without fused multiply-adds gives the same bits. Every scalar is
computed in fp64 and rounded to fp32 beforehand:

    g = gradient * factor
    c = exp_avg * beta1 + g * weight1            weight1 = 1 - beta1
    p = master * decay + step_size * sign(c)     decay = 1 - lr * weight_decay, step_size = -lr
    m = exp_avg * beta2 + g * weight2            weight2 = 1 - beta2

sign(c) is 0 if c is a zero of either sign or not a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from zerobench.engine.ops.exact import single
from zerobench.engine.rules.rule import Amount, Beta, Group, TorchRule
from zerobench.engine.section import Section


class LionParams(Section):
    """``optimizer.params``; the betas are the paper's."""

    lr: Amount = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    weight_decay: Amount = 0.0


@dataclass(frozen=True)
class LionValues:
    """Hyperparameters of Lion."""

    lr: float
    beta1: float
    beta2: float
    weight_decay: float  # decoupled, as AdamW's


class Lion(TorchRule[LionValues]):
    """It has one state and no step count. torch has no Lion that a client could pass."""

    types = ("Lion",)
    params = LionParams

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("exp_avg",)

    def values(self, group: Group, step: int) -> LionValues:
        beta1, beta2 = group["betas"]
        return LionValues(float(group["lr"]), beta1, beta2, group["weight_decay"])

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: LionValues) -> Sequence[Tensor]:
        [m] = states
        beta1, beta2 = values.beta1, values.beta2
        scalars = single(1 - values.lr * values.weight_decay, beta1, 1 - beta1, beta2, 1 - beta2, -values.lr)
        decay, beta1, weight1, beta2, weight2, step_size = scalars
        direction = (m * beta1 + g * weight1).sign_()
        return p * decay + direction * step_size, m * beta2 + g * weight2
