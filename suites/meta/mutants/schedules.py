"""Engines that follow a schedule of a hyperparameter wrongly.

Class of escape: a value that a client changes in the middle of training. Each is right while the values stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _Scheduled(Mutant):
    points_at: ClassVar[Points] = Points("optimizer_state", "parameters", "model_parameters", "reads", "progress")


class KeepsItsOwnGroups(_Scheduled):
    """A client edits copies of the groups, so that the first rates stay."""

    def param_groups(self) -> Sequence[dict[str, Any]]:
        return [dict(each) for each in super().param_groups()]


class SchedulesTheFirstGroupOnly(_Scheduled):
    def param_groups(self) -> Sequence[dict[str, Any]]:
        first, *others = super().param_groups()
        return [first, *(dict(each) for each in others)]


class _StepsWithOtherRates(_Scheduled):
    """Steps with the rates of :meth:`wrong_rates` in place of the groups'."""

    def sabotage(self) -> None:
        self.before = self.first = self._initial_rates()

    def _initial_rates(self) -> list[float]:
        """Before the engine's scheduler, if it has one, has changed them."""
        return [group.get("initial_lr", group["lr"]) for group in self.optimizer.param_groups]

    def wrong_rates(self) -> list[float]:
        raise NotImplementedError

    def step(self) -> Outcome:
        set_by_client = self.rates()
        self.set_rates(self.wrong_rates())
        outcome = super().step()
        self.set_rates(set_by_client)
        self.before = set_by_client
        return outcome


class StepsWithTheRatesBefore(_StepsWithOtherRates):
    """Reads the groups at the end of a step, for the next one."""

    def wrong_rates(self) -> list[float]:
        return self.before


class TakesZeroForUnset(_StepsWithOtherRates):
    def wrong_rates(self) -> list[float]:
        return [now or first for now, first in zip(self.rates(), self.first, strict=True)]


class NeverRaisesARate(_StepsWithOtherRates):
    def wrong_rates(self) -> list[float]:
        return [min(pair) for pair in zip(self.rates(), self.first, strict=True)]


class TakesFloatsAlone(_StepsWithOtherRates):
    """Takes a rate of another type, such as the integer 0, for one that nobody has set."""

    def wrong_rates(self) -> list[float]:
        return [now if isinstance(now, float) else first for now, first in zip(self.rates(), self.first, strict=True)]


class SchedulesAllGroupsAsTheFirst(_StepsWithOtherRates):
    """Each group has its first rate times the first group's factor, as with one schedule for the optimizer."""

    def wrong_rates(self) -> list[float]:
        factor = self.rates()[0] / self.first[0]
        return [first * factor for first in self.first]


class _KeepsItsFirst(_Scheduled):
    """Steps with the values that the hyperparameters in ``kept`` had before the first step."""

    kept: ClassVar[tuple[str, ...]]

    def sabotage(self) -> None:
        self.first = self.values()

    def values(self) -> list[dict[str, Any]]:
        return [{name: each[name] for name in self.kept if name in each} for each in self.optimizer.param_groups]

    def set_values(self, values: Sequence[dict[str, Any]]) -> None:
        for group, each in zip(self.optimizer.param_groups, values, strict=True):
            group.update(each)

    def step(self) -> Outcome:
        set_by_client = self.values()
        self.set_values(self.first)
        outcome = super().step()
        self.set_values(set_by_client)
        return outcome


class KeepsItsFirstWeightDecay(_KeepsItsFirst):
    kept = ("weight_decay",)


class KeepsItsFirstMomentum(_KeepsItsFirst):
    kept = ("momentum",)


class KeepsItsFirstBetas(_KeepsItsFirst):
    kept = ("betas",)


class KeepsItsFirstBeta2(_KeepsItsFirst):
    """Follows a change of the first beta alone, as a one-cycle schedule makes it."""

    kept = ("betas",)

    def set_values(self, values: Sequence[dict[str, Any]]) -> None:
        for group, each in zip(self.optimizer.param_groups, values, strict=True):
            if "betas" in each:
                group["betas"] = (group["betas"][0], each["betas"][1])


class KeepsItsFirstEps(_KeepsItsFirst):
    kept = ("eps",)


class KeepsItsFirstLrDecay(_KeepsItsFirst):
    kept = ("lr_decay",)


class StepsWithTheRatesOfTheFirstMicroStep(_Scheduled):
    """Reads the groups when a step begins: a client that changes them before the update is late."""

    begun: list[dict[str, Any]] | None = None

    def micro_step(self, batch: Batch) -> Tensor:
        if self.begun is None and not self.scenario.engine_schedules:
            self.begun = self.options()
        return super().micro_step(batch)

    def options(self) -> list[dict[str, Any]]:
        groups = self.optimizer.param_groups
        return [{name: value for name, value in group.items() if name != "params"} for group in groups]

    def step(self) -> Outcome:
        set_by_client, begun, self.begun = self.options(), self.begun, None
        self.take(begun or [])
        outcome = super().step()
        self.take(set_by_client if begun else [])
        return outcome

    def take(self, options: Sequence[dict[str, Any]]) -> None:
        for group, each in zip(self.optimizer.param_groups, options, strict=False):
            group.update(each)


SCHEDULED: list[type[_Scheduled]] = [
    KeepsItsOwnGroups,
    SchedulesTheFirstGroupOnly,
    StepsWithTheRatesBefore,
    TakesZeroForUnset,
    NeverRaisesARate,
    TakesFloatsAlone,
    SchedulesAllGroupsAsTheFirst,
    KeepsItsFirstWeightDecay,
    KeepsItsFirstMomentum,
    KeepsItsFirstBetas,
    KeepsItsFirstBeta2,
    KeepsItsFirstEps,
    KeepsItsFirstLrDecay,
    StepsWithTheRatesOfTheFirstMicroStep,
]
