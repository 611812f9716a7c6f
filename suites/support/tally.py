"""Tally: what became of the draws of the running test, by stage and dtype; ``zerobench conform`` shows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from zerobench.scenario import Scenario


@dataclass
class Tally:
    """Draws by (stage, dtype): all, those that the engine does not offer, those set aside, and those that passed."""

    drawn: Counter[tuple[int, str]] = field(default_factory=Counter)
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)
    set_aside: Counter[tuple[int, str]] = field(default_factory=Counter)
    ran: Counter[tuple[int, str]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    failing: Scenario | None = None  # the last; Hypothesis ends with the smallest
    _under_way: tuple[int, str] = (0, "")

    def begin(self, draw: Any) -> None:
        """A draw begins. After a failure Hypothesis looks for a smaller one, and these draws do not count."""
        if self.failing is None and (scenario := _first(draw)) is not None:
            self._under_way = scenario.stage, scenario.dtype
            self.drawn[self._under_way] += 1

    def refuse(self, reason: str) -> None:
        """The engine does not offer the draw."""
        if self.failing is None:
            self.refused[self._under_way] += 1
            self.reasons[reason] += 1

    def put_aside(self, slug: str) -> None:
        """The draw has a known finding."""
        if self.failing is None:
            self.set_aside[self._under_way] += 1
            self.known[slug] += 1

    def passed(self) -> None:
        """The draw ran, and the property held."""
        if self.failing is None:
            self.ran[self._under_way] += 1

    def failed(self, draw: Any) -> None:
        """The property did not hold."""
        self.failing = _first(draw) or self.failing


#: Of the test under way; the plugin of ``zerobench conform`` replaces it before each test.
current = Tally()


def _first(draw: Any) -> Scenario | None:
    """The Scenario of a draw, which may be a tuple that begins with one."""
    first = draw[0] if isinstance(draw, tuple) else draw
    return first if isinstance(first, Scenario) else None
