"""The demand on a failure: it points at the mutant, and its command finds it again."""

from __future__ import annotations

from typing import Any

from zerobench.ranks import RankFault
from zerobench.suites.meta.points import matches, place_of
from zerobench.suites.meta.power.catching import Failure
from zerobench.suites.meta.replaying import demand_reproduced
from zerobench.suites.support.trials import Trials


def demand_caught(trials: Trials, mutant: Any, failure: Failure | None, *, replayed: bool = True) -> None:
    """The failure points at the mutant, names it as it was given, and prints a command that finds it again.

    Args:
        trials: the engine's.
        mutant: its class.
        failure: of a property; None if all passed, which is an error.
        replayed: run the printed command.
    """
    assert failure, f"{mutant.__name__} passed: no Scenario saw it"
    assert matches(mutant.points_at, place_of(failure)), (
        f"the failure does not point at {mutant.__name__}, {mutant.points_at}: {failure}"
    )
    assert isinstance(failure, RankFault) or trials.name in str(failure).splitlines()[0]
    if replayed and "  reproduce pytest " not in str(failure):
        demand_reproduced(failure, trials.pool)
