"""Adam and AdamW (Kingma and Ba, arXiv 1412.6980; Loshchilov and Hutter, arXiv 1711.05101), by a native kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.ops.runs import Run
from zerobench.engine.ops.update import AdamValues, adam_step
from zerobench.engine.rules.rule import Amount, Beta, Group, KernelRule
from zerobench.engine.section import Section


class AdamParams(Section):
    """``optimizer.params``; with ``adam_w_mode``, on by default in DeepSpeed too, type Adam decouples its decay."""

    lr: Amount = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Amount = 1e-8
    weight_decay: Amount = 0.0
    adam_w_mode: bool = True


class Adam(KernelRule[AdamValues]):
    """Both types. A group is AdamW if ``decoupled_weight_decay`` (torch's name) is set, else Adam."""

    types = ("Adam", "AdamW")
    params = AdamParams
    clients = (torch.optim.Adam, torch.optim.AdamW)
    lacks = ("amsgrad", "maximize", "capturable", "differentiable")

    def defaults(self, params: Section, type_: str) -> dict[str, Any]:
        defaults = super().defaults(params, type_)
        defaults["decoupled_weight_decay"] = defaults.pop("adam_w_mode") or type_ == "AdamW"
        return defaults

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def values(self, group: Group, step: int) -> AdamValues:
        (beta1, beta2), decoupled = group["betas"], group["decoupled_weight_decay"]
        return AdamValues(float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], decoupled, step)

    def update_runs(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factors: Tensor,
        runs: Sequence[Run[AdamValues]],
    ) -> None:
        exp_avg, exp_avg_sq = states
        adam_step(master, gradient, exp_avg, exp_avg_sq, copy, factors, runs)
