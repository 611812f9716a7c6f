"""NAdam (Dozat, ICLR workshop 2016): Adam with Nesterov's momentum.

It has the same roundings as torch's single-tensor NAdam on a CPU with fused multiply-adds and an IEEE 754 square root
(see exact.sqrt). Every scalar is computed in fp64 and rounded to fp32 beforehand:

    g = gradient * factor
    p = master * decay                           decoupled decay; else p = master
    g = fma(l2, p, g)                            L2; else unchanged
    m = lerp(exp_avg, g, weight1)
    v = fma(weight2 * g, g, exp_avg_sq * beta2)
    d = sqrt(v / correction2) + eps              correction2 = 1 - beta2^step
    p = p + (gradient_size * g) / d              gradient_size = -lr * (1 - mu) / (1 - product)
    p = p + (mean_size * m) / d                  mean_size = -lr * mu_next / (1 - product * mu_next)

mu = beta1 * (1 - 0.96^(step * momentum_decay) / 2), and the product is that of the mu of all steps so far, in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from zerobench.engine.ops.averages import decays, lerp, mean_square, with_l2
from zerobench.engine.ops.exact import scalar, single, sqrt
from zerobench.engine.rules.rule import Amount, Beta, Group, TorchRule
from zerobench.engine.section import Section


class NadamParams(Section):
    """``optimizer.params``."""

    lr: Amount = 2e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Amount = 1e-8
    weight_decay: Amount = 0.0
    momentum_decay: Amount = 4e-3
    decoupled_weight_decay: bool = False


@dataclass(frozen=True)
class NadamValues:
    """Hyperparameters of NAdam for one step of one parameter; ``step`` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    momentum_decay: float
    decoupled: bool
    step: int

    def sizes(self) -> tuple[float, float]:
        """The sizes of the steps along the gradient and along its mean."""
        mu, following = (_mu(self.beta1, self.momentum_decay, step) for step in (self.step, self.step + 1))
        product = _products(self.beta1, self.momentum_decay).upto(self.step)
        return -self.lr * (1.0 - mu) / (1.0 - product), (-self.lr * following) / (1.0 - product * following)


def _mu(beta1: float, momentum_decay: float, step: int) -> float:
    return float(beta1 * (1.0 - 0.5 * (0.96 ** (step * momentum_decay))))


class _Products:
    """The product of mu over the first steps, rounded to fp32 at each; the products so far are kept."""

    def __init__(self, beta1: float, momentum_decay: float) -> None:
        self._beta1, self._momentum_decay = beta1, momentum_decay
        self._found = [1.0]

    def upto(self, step: int) -> float:
        while len(self._found) <= step:
            [mu] = single(_mu(self._beta1, self._momentum_decay, len(self._found)))
            self._found += single(self._found[-1] * mu)
        return self._found[step]


_products = lru_cache(maxsize=64)(_Products)


class Nadam(TorchRule[NadamValues]):
    """It keeps Adam's states. The product takes beta1 and momentum_decay as those of all steps so far."""

    types = ("NAdam",)
    params = NadamParams
    clients = (torch.optim.NAdam,)
    lacks = ("maximize", "capturable", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def values(self, group: Group, step: int) -> NadamValues:
        (beta1, beta2), decoupled = group["betas"], group["decoupled_weight_decay"]
        decays = group["weight_decay"], group["momentum_decay"]
        return NadamValues(float(group["lr"]), beta1, beta2, group["eps"], *decays, decoupled, step)

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: NadamValues) -> Sequence[Tensor]:
        m, v = states
        beta1, beta2 = values.beta1, values.beta2
        decay, l2 = decays(values.lr, values.weight_decay, values.decoupled)
        scalars = single(decay, l2, 1 - beta1, beta2, 1 - beta2, values.eps, 1 - beta2**values.step, *values.sizes())
        decay, l2, weight1, beta2, weight2, eps, correction2, gradient_size, mean_size = scalars
        p = p * decay
        g = with_l2(g, p, l2)
        m, v = lerp(m, g, weight1), mean_square(v, g, beta2, weight2)
        root = sqrt(v / scalar(correction2, v)) + eps
        p = p + (gradient_size * g) / root
        return p + (mean_size * m) / root, m, v
