"""Engines that follow a schedule of the learning rate wrongly.

Class of escape: a value that a client changes in the middle of training. Each is right while the rates stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _Scheduled(Mutant):
    points_at: ClassVar[Points] = Points("optimizer_state", "parameters", "model_parameters", "reads")


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
        self.before = self.first = self.rates()

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


SCHEDULED: list[type[_Scheduled]] = [
    KeepsItsOwnGroups,
    SchedulesTheFirstGroupOnly,
    StepsWithTheRatesBefore,
    TakesZeroForUnset,
    NeverRaisesARate,
]
