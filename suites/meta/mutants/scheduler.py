"""Engines that step a scheduler of the learning rate at a wrong time.

Class of escape: a scheduler that the engine steps. Each is right while the client sets the learning rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_AT = Points("parameters", "model_parameters", "losses", "optimizer_state", "reads", "progress")


class _OfScheduler(Mutant):
    """Has the engine's scheduler, or None."""

    points_at = _AT

    @property
    def scheduler(self) -> Any:
        return self.engine.lr_scheduler


class SchedulesSkippedSteps(_OfScheduler):
    """A skipped step advances the scheduler as well."""

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.skipped and self.scheduler:
            self.scheduler.step()
        return outcome


class SchedulesMicroSteps(_OfScheduler):
    """The scheduler advances at each micro-step."""

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        if self.scheduler and not self.engine.is_gradient_accumulation_boundary():
            self.scheduler.step()
        return loss


class SchedulesBeforeTheUpdate(_OfScheduler):
    """The scheduler advances before the update, so the first learning rate is never used."""

    def sabotage(self) -> None:
        if self.scheduler:
            self.scheduler.step()


class SchedulesOneGroup(_OfScheduler):
    """The groups after the first keep their learning rate."""

    def sabotage(self) -> None:
        self._kept = self.rates()

    def step(self) -> Outcome:
        outcome = super().step()
        if self.scheduler:
            self.set_rates([*self.rates()[:1], *self._kept[1:]])
        return outcome


class ShowsTheFirstRate(_OfScheduler):
    """The groups that a client reads keep their first learning rate; the update takes the scheduler's."""

    points_at = Points("progress")

    def sabotage(self) -> None:
        self._shown = self.rates()

    def param_groups(self) -> Sequence[dict[str, Any]]:
        groups = super().param_groups()
        if not self.scheduler:
            return groups
        return [{**group, "lr": rate} for group, rate in zip(groups, self._shown, strict=True)]


SCHEDULERS: list[type[Mutant]] = [
    SchedulesSkippedSteps,
    SchedulesMicroSteps,
    SchedulesBeforeTheUpdate,
    SchedulesOneGroup,
    ShowsTheFirstRate,
]
