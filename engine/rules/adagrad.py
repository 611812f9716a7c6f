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

from zerobench.engine.ops.averages import with_l2
from zerobench.engine.ops.exact import fma, single, sqrt
from zerobench.engine.rules.rule import Amount, Group, TorchRule
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


class Adagrad(TorchRule[AdagradValues]):
    """It has one state, the sum, which starts at zero."""

    types = ("Adagrad",)
    params = AdagradParams
    clients = (torch.optim.Adagrad,)
    lacks = ("initial_accumulator_value", "maximize", "differentiable")

    def is_fresh(self, client: torch.optim.Optimizer) -> bool:
        """Decided by the step counts, since torch's Adagrad has its states from the beginning."""
        return not any(state["step"] for _, state in client.state.items())

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("sum",)

    def values(self, group: Group, step: int) -> AdagradValues:
        return AdagradValues(float(group["lr"]), group["lr_decay"], group["eps"], group["weight_decay"], step)

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: AdagradValues) -> Sequence[Tensor]:
        [total] = states
        rate = values.lr / (1 + (values.step - 1) * values.lr_decay)
        l2, eps, step_size = single(values.weight_decay, values.eps, -rate)
        g = with_l2(g, p, l2)
        squares = fma(g, g, total)
        return p + (step_size * g) / (sqrt(squares) + eps), squares
