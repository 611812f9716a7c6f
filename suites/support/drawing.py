"""Drawing: how a drawn test ends if a Scenario hangs, if it fails only sometimes, and if the engine offers too few."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest
from hypothesis import currently_in_test_context, given, reject, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure, Unsatisfiable, UnsatisfiedAssumption

from zerobench.errors import Disagreement
from zerobench.findings import KnownFinding
from zerobench.ranks import RankFault
from zerobench.scenario import Scenario
from zerobench.suites.support import tally

Test = Callable[..., None]
#: Draws after which an engine that offered none will offer none.
PATIENCE = 10
#: Draws after which known findings will describe all others, too.
KNOWN_PATIENCE = 100
#: How the message of a race begins.
RACE = "differs between two runs of the same Scenario"


class _Hung(BaseException):
    """Ends Hypothesis at once; for any Exception it would run Scenarios that hang to find a smaller one."""


@dataclass
class Course:
    """The numbers and reasons of the draws of one test."""

    drawn: int = 0
    offered: int = 0  # by the engine, as drawn or after some fields changed
    ran: int = 0  # to the end of the test
    refused: Counter[str] = field(default_factory=Counter)  # draws by the engine's reason
    refuses: bool = False  # the draw under way
    changed: bool = False  # the draw under way: the engine offers only a neighbour of it
    failure: Exception | None = None  # the last one

    @property
    def usual_reason(self) -> str:
        """The most frequent reason to drop a draw."""
        [(reason, _)] = self.refused.most_common(1)
        return reason

    def restart(self) -> None:
        """A test begins."""
        vars(self).update(vars(Course()))

    def begin(self) -> None:
        """A draw begins."""
        self.drawn += 1
        self.refuses = self.changed = False

    def __str__(self) -> str:
        return f"{self.drawn} drawn, {self.offered} offered, {self.ran} ran"


_course = Course()


def course() -> Course:
    """The course of the latest test."""
    return _course


def refuse(reason: str) -> NoReturn:
    """Drop a draw because the engine does not offer it; skip a test that draws nothing."""
    note_refusal(reason)
    if not currently_in_test_context():
        pytest.skip(reason)
    reject()


def give_up(reason: str) -> NoReturn:
    """Drop a draw because the engine offers nothing near it. If that is so for each of the first draws, skip with the
    most frequent reason. Skip a test that draws nothing."""
    note_refusal(reason)
    if not currently_in_test_context():
        pytest.skip(reason)
    if _course.drawn >= PATIENCE and not _course.offered:
        pytest.skip(_course.usual_reason)
    reject()


def pass_over() -> NoReturn:
    """Drop a draw because known findings describe it and all near it. If that is so for each of the first draws, skip
    with the most frequent one."""
    if _course.drawn >= KNOWN_PATIENCE and not _course.ran and _course.failure is None:
        pytest.skip(_course.usual_reason)
    reject()


def note_refusal(reason: str) -> None:
    """If all draws are dropped, the test skips with the most frequent reason."""
    _course.refused[reason] += 1
    _course.refuses = True
    tally.current.refuse(reason)


def note_known(finding: KnownFinding) -> None:
    """A draw with a known finding is set aside, so that the property goes on past it."""
    _course.refused[f"all draws have the known finding {finding.slug}"] += 1
    tally.current.put_aside(finding.slug)


def note_beside(known: Scenario, found: Scenario) -> None:
    """The draw under way runs as ``found`` and not as ``known``, which is set aside; it covers nothing."""
    _course.changed = True
    tally.current.runs_beside(known, found)


def note_nearest(drawn: Scenario, found: Scenario, ran: Scenario, reason: str) -> None:
    """The draw under way runs as ``found``; if that is another Scenario, for the engine's reason, it covers nothing.

    ``ran`` is ``found`` with the engine's own settings, which a failure names.
    """
    _course.changed |= found != drawn
    tally.current.runs_as(ran, reason)


def draw(test: Test, strategy: st.SearchStrategy[Any], chosen: settings, least: int = 1) -> Test:
    """The test on draws of ``scenario``.

    If a Scenario hangs, the test ends with that failure. If one fails and then passes, the failure is a race's. If the
    engine offers none, or if fewer than ``least`` ran to the end, the test skips: it is no pass.
    """
    runs = chosen(given(scenario=strategy)(_observed(test)))

    @functools.wraps(runs)
    def drawn_test(*args: Any, **kwargs: Any) -> None:
        _course.restart()
        try:
            runs(*args, **kwargs)
        except _Hung:
            assert _course.failure is not None
            raise _course.failure from None
        except Unsatisfiable:
            if not _course.refused:
                raise
            pytest.skip(_course.usual_reason)
        except BaseExceptionGroup as group:
            _raise_race(group)
            raise
        if _course.ran < least:
            pytest.skip(f"not enough: {_course.ran} of at least {least} draws ran ({_course})")

    return drawn_test


def _observed(test: Test) -> Test:
    """The test, which counts its draws and keeps its failure; a hang ends the draws."""

    @functools.wraps(test)
    def observed(*args: Any, **kwargs: Any) -> None:
        _course.begin()
        tally.current.begin(kwargs["scenario"])
        try:
            test(*args, **kwargs)
            tally.current.passed()
        except UnsatisfiedAssumption:
            raise
        except Exception as error:
            _course.failure = error
            tally.current.failed()
            if isinstance(error, RankFault) and error.kind == "timeout":
                raise _Hung from None
            raise
        else:
            _course.ran += 1
        finally:
            _course.offered += not _course.refuses

    return observed


def _raise_race(group: BaseExceptionGroup[BaseException]) -> None:
    """If a Scenario failed and then passed, or failed otherwise, raise one failure that says so."""
    flaky, _ = group.split(FlakyFailure) if not isinstance(group, FlakyFailure) else (group, None)
    if flaky is None:
        return
    leaves = list(_leaves(flaky))
    seen = [each for each in leaves if isinstance(each, Disagreement | RankFault)]
    first = seen[0] if seen else _course.failure or leaves[0]
    if isinstance(first, Disagreement):
        raise Disagreement(f"{RACE}\n{first}", first.finding) from None
    if isinstance(first, RankFault):
        raise Disagreement(f"{RACE}\n{first}", first.place) from None
    raise AssertionError(f"{RACE}\n{type(first).__name__}: {first}") from first


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each
