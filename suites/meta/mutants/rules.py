"""Engines that take one optimizer for another without an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine import rules
from zerobench.engine.ops.runs import Run
from zerobench.engine.ops.update import AdamValues
from zerobench.engine.rules.adam import Adam
from zerobench.engine.rules.lion import Lion, LionValues
from zerobench.engine.rules.rule import Group
from zerobench.oracles.rules import hyperparameters
from zerobench.scenario import Scenario
from zerobench.subjects import reference
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _RuleMutant(Mutant):
    """After one step the difference is in the states that the rule wrote."""

    points_at = Points("optimizer_state", "parameters", step=0)
    rule: ClassVar[str]  # the Scenario's optimizer, replaced by another one


class _ElseAdam(_RuleMutant):
    """Looks the rule up and gets Adam, which knows all of the rule's parameters but Adagrad's decay."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        known = {name: value for name, value in hyperparameters(scenario.optimizer).items() if name != "lr_decay"}
        adam = mock.patch.dict(rules._BY_TYPE, {self.rule: rules.of_type("Adam")})
        with adam, mock.patch.object(reference, "_optimizer_params", return_value=known):
            super().__init__(model, scenario, group)


class StepsLionAsAdam(_ElseAdam):
    rule = "lion"


class StepsAdagradAsAdam(_ElseAdam):
    rule = "adagrad"


class StepsLionByAdamsFormula(_RuleMutant):
    """Keeps Lion's state and steps it as Adam from a variance of zero."""

    rule = "lion"

    def sabotage(self) -> None:
        if isinstance(self.optimizer.rule, Lion):
            self.optimizer.rule = _AdamInLionsState()


class _AdamInLionsState(Adam):
    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return ("exp_avg",)

    def values(self, group: Group, step: int) -> AdamValues:
        lion: LionValues = rules.of_type("Lion").values(group, step)
        return AdamValues(lion.lr, lion.beta1, lion.beta2, 1e-8, lion.weight_decay, True, step)

    def update_runs(
        self,
        master: Tensor,
        gradient: Tensor,
        states: Sequence[Tensor],
        copy: Tensor | None,
        factors: Tensor,
        runs: Sequence[Run[AdamValues]],
    ) -> None:
        super().update_runs(master, gradient, [*states, torch.zeros_like(master)], copy, factors, runs)


RULE_MUTANTS: list[type[_RuleMutant]] = [StepsLionAsAdam, StepsAdagradAsAdam, StepsLionByAdamsFormula]
