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
from zerobench.engine.ops.exact import fma, replace, single, sqrt, tiles
from zerobench.engine.rules.rule import Amount, Group, Rule
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


class Rmsprop(Rule[RmspropValues]):
    """If one group has momentum or is centered, all groups keep the state; groups without do not use theirs."""

    types = ("RMSprop",)
    params = RmspropParams
    clients = (torch.optim.RMSprop,)
    refused = ("maximize", "capturable", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("square_avg", *(name for name, option in _OPTIONAL if any(group[option] for group in groups)))

    def values(self, group: Group, step: int) -> RmspropValues:
        names = ("alpha", "eps", "weight_decay", "momentum", "centered")
        return RmspropValues(float(group["lr"]), *(group[name] for name in names))

    def update(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factor: Tensor,
        values: RmspropValues,
    ) -> None:
        decay, weight = values.alpha, 1 - values.alpha
        scalars = single(values.weight_decay, decay, weight, values.eps, values.momentum, -values.lr)
        averages = states[1:2] if values.centered else []
        buffers = states[-1:] if values.momentum else []
        definition(master, gradient, [states[0], *averages], buffers, copy, factor, *scalars)


#: The states besides the mean square, and the options that need them.
_OPTIONAL = (("grad_avg", "centered"), ("momentum_buffer", "momentum"))


def definition(
    master: Tensor,
    gradient: Tensor,
    averages: Sequence[Tensor],
    buffers: Sequence[Tensor],
    copy: Tensor | None,
    factor: Tensor,
    l2: float,
    alpha: float,
    weight: float,
    eps: float,
    momentum: float,
    step_size: float,
) -> None:
    """RMSprop in torch, on every device: with one or two averages, and with a momentum buffer or none."""
    updates = ~factor.isnan()
    for part in tiles(master.numel()):
        p, g = master[part], gradient[part].float() * factor
        g = with_l2(g, p, l2)
        before = [each[part] for each in (*averages, *buffers)]
        after = [mean_square(before[0], g, alpha, weight), *(lerp(a, g, weight) for a in before[1 : len(averages)])]
        variance = fma(-after[1], after[1], after[0]) if len(averages) == 2 else after[0]
        root = sqrt(variance) + eps
        if buffers:
            after.append(before[-1] * momentum + g / root)
            moved = fma(step_size, after[-1], p)
        else:
            moved = p + (step_size * g) / root
        replace(updates, (p, *before), (moved, *after))
        if copy is not None:
            copy[part].copy_(p)
