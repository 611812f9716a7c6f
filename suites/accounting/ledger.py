"""Ledgers of the engine under test, held to their closed forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import pytest

from zerobench.bench.accounts import TASKS, Books, UnknownForm
from zerobench.errors import Disagreement
from zerobench.judge.command import Account, ReplayCommand
from zerobench.judge.ledger import Entry, LedgerDifference, LedgerPart
from zerobench.scenario import Scenario
from zerobench.subject import Theory
from zerobench.suites.support.rerun import pytest_command
from zerobench.suites.support.trials import Trials

T = TypeVar("T")


def demand_account(trials: Trials, scenario: Scenario, account: Account) -> None:
    """Demand that every number of an account is that of its closed form; skip the test if no form is known.

    Raises:
        Disagreement: they differ.
    """
    try:
        found = next(Books(trials.name, scenario).differences(account, ledgers(trials, scenario, account)), None)
    except UnknownForm as error:
        pytest.skip(str(error))
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


def skip_unless_offered(trials: Trials, scenario: Scenario) -> None:
    """Skip the test, with the engine's own reason, if it does not offer the Scenario."""
    if reason := trials.subject.not_offered(scenario):
        pytest.skip(reason)


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
    if got != expected:
        found = LedgerDifference(trials.name, scenario, rank, entry, got, expected, formula)
        again = (
            ReplayCommand(scenario, trials.name, account=account) if account else pytest_command(scenario, trials.name)
        )
        raise Disagreement(f"{found}\n{again}", found)
