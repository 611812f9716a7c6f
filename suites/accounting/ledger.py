"""Ledgers of the engine under test, held to their closed forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import pytest

from zerobench import findings
from zerobench.bench.accounts import TASKS, Books, UnknownForm
from zerobench.errors import Disagreement
from zerobench.judge.command import Account, ReplayCommand
from zerobench.judge.ledger import Entry, LedgerDifference, LedgerPart
from zerobench.scenario import Scenario
from zerobench.subject import Theory
from zerobench.suites.support import judged
from zerobench.suites.support.offered import nearest_unknown
from zerobench.suites.support.rerun import pytest_command
from zerobench.suites.support.trials import Trials

T = TypeVar("T")

#: Judges one Scenario: see costs.py.
Cost = Callable[[Trials, Scenario], None]

#: The rules of the accounts that need no closed form, for the summary of a run.
_RULES: dict[Account, str] = {
    "received": "equal: all ranks receive what all ranks send",
    "growth": "equal: as many bytes as after three steps",
    "hidden": "equal: the order of the chunks, and nothing else",
    "unreduced": "at most the gradients of two blocks",
}


def demand_account(trials: Trials, scenario: Scenario, account: Account) -> None:
    """Demand that every number of an account is that of its closed form; skip the test if no form is known.

    Raises:
        Disagreement: they differ.
    """
    try:
        found = next(Books(trials.name, scenario).differences(account, ledgers(trials, scenario, account)), None)
    except UnknownForm as error:
        pytest.skip(str(error))
    judged.current.note(scenario, _RULES.get(account, "equal to the closed form"))
    if found is not None:
        raise Disagreement(f"{found}\n{ReplayCommand(scenario, trials.name, account=account)}", found)


def ledgers(trials: Trials, scenario: Scenario, account: Account) -> list[Any]:
    """The Scenario's ledgers, in rank order; a second call returns the same ones."""
    return _measured(trials, ReplayCommand(scenario, trials.name, account=account), *TASKS[account])


@lru_cache(maxsize=256)
def _taken(trials: Trials, scenario: Scenario, task: Callable[..., Any], args: tuple[Account, ...]) -> list[list[Any]]:
    """An empty list, which the first call fills: accounts of one task share it."""
    return []


def _measured(trials: Trials, command: ReplayCommand, task: Callable[..., Any], args: tuple[Account, ...]) -> list[Any]:
    taken = _taken(trials, command.scenario, task, args)
    if not taken:
        taken.append(trials.ask(command, task, *args))
    return taken[0]


def theory_of(trials: Trials) -> Theory:
    """The closed forms of an engine that has some."""
    theory = trials.subject.theory()
    assert theory is not None, f"no closed form of {trials.name} is known"
    return theory


def known(trials: Trials, form: T | None, part: LedgerPart) -> T:
    """The closed form; skip the test if the engine's theory has none of this part."""
    if form is None:
        pytest.skip(f"no closed form of {trials.name} is known: {part}")
    return form


def judge(trials: Trials, scenario: Scenario, cost: Cost, *fixed: str) -> None:
    """Judge a cost (see costs.py) of the Scenario, if the engine offers it, past the known findings, none of which
    changes its ``fixed`` fields.

    Raises:
        Disagreement: the cost is larger than its bound.
    """
    cost(trials, offered(trials, scenario, cost, *fixed))


def offered(trials: Trials, scenario: Scenario, cost: Cost, *fixed: str) -> Scenario:
    """The Scenario, if the engine offers it; skip the test, with the engine's own reason, if it does not.

    If a known finding, of training or of this cost, describes it, the nearest Scenario that none describes, with the
    same stage and ``fixed`` fields; skip the test, with the finding, if there is none.
    """
    if reason := trials.subject.not_offered(scenario):
        pytest.skip(reason)
    if (finding := findings.matching(trials.subject, scenario, cost.__name__)) is None:
        return scenario
    judged.current.set_aside.add(finding.slug)
    beside = nearest_unknown(trials.subject, scenario, ("stage", *fixed), cost.__name__)
    if beside is None:
        pytest.skip(f"the known finding {finding.slug}: {finding.explanation}")
    return beside


def offers(trials: Trials, scenario: Scenario, cost: Cost) -> bool:
    """Whether the engine offers a drawn Scenario, and no known finding, of training or of this cost, describes it."""
    if trials.offers(scenario, cost=cost.__name__):
        return True
    if finding := findings.matching(trials.subject, scenario, cost.__name__):
        judged.current.set_aside.add(finding.slug)
    return False


def demand(
    trials: Trials,
    scenario: Scenario,
    rank: int,
    entry: Entry,
    got: object,
    expected: object,
    formula: str,
    account: Account | None = None,
) -> None:
    """Raise if a measured number is not the expected one; an ``account`` that has the number finds it again.

    Raises:
        Disagreement: they differ.
    """
    judged.current.note(scenario, f"equal: {formula}")
    _raise_if_different(trials, scenario, rank, entry, got, expected, formula, account)


def demand_at_most(
    trials: Trials, scenario: Scenario, rank: int, entry: Entry, size: int, most: int, bound: str, rule: str = ""
) -> None:
    """Raise if a measured number is larger than a bound, which is ``bound`` in words; ``rule`` are those words without
    the Scenario's own numbers.

    Raises:
        Disagreement: it is.
    """
    judged.current.note(scenario, rule or bound, size / max(most, 1))
    _raise_if_different(trials, scenario, rank, entry, size <= most, True, f"<= {most}: {bound}", None)


def _raise_if_different(
    trials: Trials,
    scenario: Scenario,
    rank: int,
    entry: Entry,
    got: object,
    expected: object,
    formula: str,
    account: Account | None,
) -> None:
    if got != expected:
        found = LedgerDifference(trials.name, scenario, rank, entry, got, expected, formula)
        again = (
            ReplayCommand(scenario, trials.name, account=account) if account else pytest_command(scenario, trials.name)
        )
        raise Disagreement(f"{found}\n{again}", found)
