"""Forms: the traffic that a step or a call may have, in calls and bytes of each collective.

An engine that promises the contract's bits sends the same in every history. Another one may do work that is due once in
the call that needs it first. For example, DeepSpeed's stage 3 agrees on the order of the modules in its first two
forwards, whatever they are for, and gathers small parameters that a skipped step has not gathered in the next forward.
So its step may cost less by as much as the call before it has cost, or more by as much as the skipped step has cost
less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zerobench.judge.ledger import Entry
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.suites.accounting.history import Costs
from zerobench.suites.accounting.ledger import demand
from zerobench.suites.support.trials import Trials


@dataclass(frozen=True)
class Form:
    """All costs between the least and the most, which are equal if no work moves; in words, and the words of a move."""

    words: str
    least: Costs
    most: Costs
    moved: str = ""

    @classmethod
    def exactly(cls, words: str, costs: Costs) -> Form:
        return cls(words, costs, costs)

    @classmethod
    def after_calls(cls, trials: Trials, words: str, costs: Costs, done: Costs) -> Form:
        """Of a step before which calls have ``done`` something."""
        if trials.subject.promises_bits or not done:
            return cls.exactly(words, costs)
        return cls(words, less(costs, done), costs, ", or less by what the calls before it have sent")

    @classmethod
    def after_skips(cls, trials: Trials, words: str, costs: Costs, undone: Costs) -> Form:
        """Of a step before which skipped ones have left something ``undone``."""
        if trials.subject.promises_bits or not undone:
            return cls.exactly(words, costs)
        return cls(words, costs, plus(costs, undone), ", or more by what the skipped step has not sent")

    def nearest(self, collective: str, got: Traffic) -> Traffic:
        """Of these costs of a collective, those nearest to the measured ones."""
        least, most = self.least.get(collective, Traffic()), self.most.get(collective, Traffic())
        return _each(lambda low, seen, high: min(max(low, seen), high), least, got, most)


def plus(*several: Costs) -> Costs:
    """The sum."""
    names = {name for each in several for name in each}
    return {name: sum((each.get(name, Traffic()) for each in several), Traffic()) for name in names}


def less(costs: Costs, others: Costs) -> Costs:
    """The difference, or 0 if it is negative."""
    return {
        name: _each(lambda one, other: max(one - other, 0), each, others.get(name, Traffic()))
        for name, each in costs.items()
    }


def _each(change: Callable[..., int], *of: Traffic) -> Traffic:
    """Calls, bytes sent and bytes received, each by itself."""
    return Traffic(*(change(*each) for each in zip(*((t.calls, t.sent, t.received) for t in of), strict=True)))


def demand_traffic(
    trials: Trials, scenario: Scenario, rank: int, what: str, step: int | None, got: Costs, form: Form
) -> None:
    """Raise if the costs of a step or a call are not of a form.

    Raises:
        Disagreement: they are not.
    """
    for collective in sorted({*got, *form.most}):
        entry = Entry("traffic", f"{collective} in {what}", collective, step)
        seen = got.get(collective, Traffic())
        demand(trials, scenario, rank, entry, seen, form.nearest(collective, seen), form.words + form.moved)
