"""Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011): each element's rate falls with the sum of its squared gradients.

It has the same roundings as torch's single-tensor Adagrad on a CPU with fused multiply-adds and an IEEE 754 square
root (see exact.sqrt). Every scalar is computed in fp64 and rounded to fp32 beforehand:

    g = gradient * factor
    g = fma(l2, master, g)                            with weight decay; else unchanged
    s = fma(g, g, sum)
    p = master + (step_size * g) / (sqrt(s) + eps)    step_size = -lr / (1 + (step - 1) * lr_decay)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.ops.exact import fma, replace, single, sqrt, tiles
from zerobench.engine.rules.rule import Amount, Group, Rule
from zerobench.engine.section import Section


class AdagradParams(Section):
    """``optimizer.params``."""

    lr: Amount = 1e-2
    lr_decay: Amount = 0.0
    eps: Amount = 1e-10
    weight_decay: Amount = 0.0


@dataclass(frozen=True)
class AdagradValues:
    """Hyperparameters of Adagrad for one step of one parameter; ``step`` counts from 1."""

    lr: float
    lr_decay: float
    eps: float
    weight_decay: float  # L2: added to the gradient
    step: int


class Adagrad(Rule[AdagradValues]):
    """It has one state, the sum, which starts at zero; an initial accumulator value is refused."""

    types = ("Adagrad",)
    params = AdagradParams
    clients = (torch.optim.Adagrad,)
    refused = ("initial_accumulator_value", "maximize", "differentiable")

    def is_fresh(self, client: torch.optim.Optimizer) -> bool:
        """Decided by the step counts, since torch's Adagrad has its states from the beginning."""
        return not any(state["step"] for state in client.state.values())

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("sum",)

    def values(self, group: Group, step: int) -> AdagradValues:
        return AdagradValues(float(group["lr"]), group["lr_decay"], group["eps"], group["weight_decay"], step)

    def update(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factor: Tensor,
        values: AdagradValues,
    ) -> None:
        [total] = states
        rate = values.lr / (1 + (values.step - 1) * values.lr_decay)
        definition(master, gradient, total, copy, factor, *single(values.weight_decay, values.eps, -rate))


def definition(
    master: Tensor,
    gradient: Tensor,
    total: Tensor,
    copy: Tensor | None,
    factor: Tensor,
    l2: float,
    eps: float,
    step_size: float,
) -> None:
    """Adagrad in torch, on every device."""
    updates = ~factor.isnan()
    for part in tiles(master.numel()):
        p, g, s = master[part], gradient[part].float() * factor, total[part]
        if l2 != 0:
            g = fma(l2, p, g)
        squares = fma(g, g, s)
        replace(updates, (p, s), (p + (step_size * g) / (sqrt(squares) + eps), squares))
        if copy is not None:
            copy[part].copy_(p)
