"""Tally: the outcomes of the draws of the running test, by stage and dtype; ``zerobench conform`` shows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from zerobench.scenario import Scenario


@dataclass
class Tally:
    """Draws by (stage, dtype): all, those that the engine does not offer, those set aside, and those that passed.

    A draw that runs as another Scenario, the nearest that the engine offers, counts for that one's stage and dtype too.
    """

    drawn: Counter[tuple[int, str]] = field(default_factory=Counter)
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    set_aside: Counter[tuple[int, str]] = field(default_factory=Counter)
    ran: Counter[tuple[int, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    failing: Scenario | None = None  # the last that ran; Hypothesis ends with the smallest
    _scenario: Scenario | None = None  # of the draw under way
    _as_drawn: bool = True

    def begin(self, draw: Any) -> None:
        """A draw begins. After a failure Hypothesis looks for a smaller one, and these draws do not count."""
        self._scenario, self._as_drawn = _first(draw), True
        self._count(self.drawn)

    def runs_as(self, scenario: Scenario, reason: str) -> None:
        """The draw, or the first of several Scenarios in it, runs as this one for the engine's reason."""
        if self._scenario is None or not self._as_drawn:
            return
        self._as_drawn = False
        if _cell(scenario) != _cell(self._scenario):
            self.refuse(reason)
        self._move(self._scenario, scenario)

    def refuse(self, reason: str) -> None:
        """The engine does not offer the draw, for its reason if it was asked."""
        self._count(self.refused)
        if reason and self.failing is None:
            self.reasons[reason] += 1

    def put_aside(self, slug: str) -> None:
        """The draw has a known finding."""
        self._count(self.set_aside)
        if self.failing is None:
            self.known[slug] += 1

    def runs_beside(self, known: Scenario, scenario: Scenario) -> None:
        """The draw, or the first Scenario in it, was put aside as ``known`` and runs as this one."""
        if self._scenario == known:
            self._move(known, scenario)

    def _move(self, before: Scenario, scenario: Scenario) -> None:
        self._scenario = scenario
        if _cell(scenario) != _cell(before):
            self._count(self.drawn)

    def passed(self) -> None:
        """The draw ran, and the property held."""
        self._count(self.ran)

    def failed(self) -> None:
        """The property did not hold."""
        self.failing = self._scenario or self.failing

    def _count(self, counts: Counter[tuple[int, str]]) -> None:
        if self.failing is None and self._scenario is not None:
            counts[_cell(self._scenario)] += 1


#: Of the test under way; the plugin of ``zerobench conform`` replaces it before each test.
current = Tally()


def _cell(scenario: Scenario) -> tuple[int, str]:
    return scenario.stage, scenario.dtype


def _first(draw: Any) -> Scenario | None:
    """The Scenario of a draw, which may be a tuple that begins with one."""
    first = draw[0] if isinstance(draw, tuple) else draw
    return first if isinstance(first, Scenario) else None
