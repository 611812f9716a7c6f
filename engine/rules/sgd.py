"""SGD with momentum, by a native kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zerobench.engine.ops.runs import Run
from zerobench.engine.ops.update import SgdValues, sgd_step
from zerobench.engine.rules.rule import Amount, Group, KernelRule
from zerobench.engine.section import Section


class SgdParams(Section):
    """``optimizer.params``."""

    lr: Amount = 1e-3
    momentum: Amount = 0.0
    weight_decay: Amount = 0.0


class Sgd(KernelRule[SgdValues]):
    """If one group has momentum when the engine is built, all groups keep a buffer; groups without momentum do not use
    theirs."""

    types = ("SGD",)
    params = SgdParams
    clients = (torch.optim.SGD,)
    lacks = ("maximize", "nesterov", "dampening", "differentiable")

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("momentum_buffer",) if any(group["momentum"] for group in groups) else ()

    def values(self, group: Group, step: int) -> SgdValues:
        return SgdValues(float(group["lr"]), group["momentum"], group["weight_decay"])

    def update_runs(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factors: Tensor,
        runs: Sequence[Run[SgdValues]],
    ) -> None:
        sgd_step(master, gradient, states[0] if states else None, copy, factors, runs)
