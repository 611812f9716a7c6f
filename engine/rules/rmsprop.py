"""RMSprop (Tieleman and Hinton, lecture 6.5, 2012): the gradient over the root of its mean square.

It has the same roundings as torch's single-tensor RMSprop on a CPU with fused multiply-adds and an IEEE 754 square root
(see exact.sqrt). Every scalar is computed in fp64 and rounded to fp32 beforehand:

    g = gradient * factor
    g = fma(l2, master, g)                       with weight decay; else unchanged
    v = fma(weight * g, g, square_avg * alpha)   weight = 1 - alpha
    a = lerp(grad_avg, g, weight)                centered
    d = sqrt(fma(-a, a, v)) + eps                centered; else d = sqrt(v) + eps
    b = momentum_buffer * momentum + g / d       with momentum, and p = fma(-lr, b, master)
    p = master + (-lr * g) / d                   without
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.ops.averages import lerp, mean_square, with_l2
from zerobench.engine.ops.exact import fma, single, sqrt
from zerobench.engine.rules.rule import Amount, Group, TorchRule
from zerobench.engine.section import Section


class RmspropParams(Section):
    """``optimizer.params``."""

    lr: Amount = 1e-2
    alpha: Amount = 0.99
    eps: Amount = 1e-8
    weight_decay: Amount = 0.0
    momentum: Amount = 0.0
    centered: bool = False


@dataclass(frozen=True)
class RmspropValues:
    """Hyperparameters of RMSprop."""

    lr: float
    alpha: float
    eps: float
    weight_decay: float  # L2: added to the gradient
    momentum: float
    centered: bool


#: The states besides the mean square, and the options that need them.
_OPTIONAL = (("grad_avg", "centered"), ("momentum_buffer", "momentum"))


class Rmsprop(TorchRule[RmspropValues]):
    """If one group has momentum or is centered, all groups keep the state; groups without do not use theirs."""

    types = ("RMSprop",)
    params = RmspropParams
    clients = (torch.optim.RMSprop,)
    lacks = ("maximize", "capturable", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("square_avg", *(name for name, option in _OPTIONAL if any(group[option] for group in groups)))

    def values(self, group: Group, step: int) -> RmspropValues:
        names = ("alpha", "eps", "weight_decay", "momentum", "centered")
        return RmspropValues(float(group["lr"]), *(group[name] for name in names))

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: RmspropValues) -> Sequence[Tensor]:
        after = list(states)
        scalars = single(values.weight_decay, values.alpha, 1 - values.alpha, values.eps, values.momentum, -values.lr)
        l2, alpha, weight, eps, momentum, step_size = scalars
        g = with_l2(g, p, l2)
        after[0] = variance = mean_square(states[0], g, alpha, weight)
        if values.centered:
            after[1] = mean = lerp(states[1], g, weight)
            variance = fma(-mean, mean, variance)
        root = sqrt(variance) + eps
        if values.momentum:
            after[-1] = buffer = states[-1] * momentum + g / root
            return fma(step_size, buffer, p), *after
        return p + (step_size * g) / root, *after
