"""Pass: one forward and its backward, or one evaluation, on this rank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from zerobench.engine.state.unit import UnitState


class Reductions(Protocol):
    """The gradients of the running backward, as an interface for the ranks' agreement."""

    @property
    def ready(self) -> int:
        """The number of units, in the order of reduction, that this rank can reduce."""

    def launch(self, count: int) -> None:
        """Start reducing the first ``count`` units, on every rank."""


# The minimum number of uses that prefetching looks ahead (see Pass.ahead).
_LEAST_AHEAD = 2


class Pass:
    """The uses of units from the beginning of a forward to the end of its backward on all ranks, in order.

    It exists from the first use of a unit to the end. This pass is expected to repeat the uses of the last pass of its
    kind; the next units are predicted from them. The work for a use does not grow with the number of units.

    Args:
        kind: training, evaluation, reading, or a part alone; the order of uses differs between kinds.
        expected: the uses of the last pass of this kind; None if there was none.
    """

    def __init__(self, kind: str, expected: Sequence[UnitState] | None) -> None:
        self.kind, self._expected, self._cursor = kind, expected or (), 0
        #: Whether there was a pass of this kind before.
        self.foreseen = expected is not None
        self.used: list[UnitState] = []
        #: The units used last; no other unit has been used since, so they are whole.
        self.current: frozenset[UnitState] = frozenset()
        #: The reductions of the backward, if one is running.
        self.reductions: Reductions | None = None
        self._end, self._elements = 0, 0  # the uses that prefetching has looked at end there; their elements
        self._freed: list[UnitState] = []  # since then, with a use among them
        self._places: dict[UnitState, list[int]] = {}  # of each unit in the expected uses
        for place, state in enumerate(self._expected):
            self._places.setdefault(state, []).append(place)
        self._missing = sum(not state.resident for state in self._expected)

    def use(self, states: Sequence[UnitState]) -> None:
        """Record a use, and find it in the expected order."""
        self.current = frozenset(states)
        for state in states:
            self.used.append(state)
            remaining = self._remaining(state)
            if remaining:
                self._advance(self._places[state][-remaining] + 1)

    def ahead(self, elements: int) -> list[UnitState]:
        """The units to prefetch: those of the next uses that are not whole, each once until it is resharded again.

        The next uses are at least two, and all further ones whose units, whole ones included, have up to ``elements``
        elements in total. Two are needed, since a gather announced at one use is issued at the next use, which already
        needs the unit.
        """
        found = [state for state in self._freed if self._next(state) < self._end]
        self._freed.clear()
        while self._end < len(self._expected):
            state = self._expected[self._end]
            if self._end - self._cursor >= _LEAST_AHEAD and self._elements + state.unit.padded > elements:
                break
            self._end, self._elements = self._end + 1, self._elements + state.unit.padded
            found.append(state)
        return [state for state in dict.fromkeys(found) if not state.resident]

    def allocated(self, state: UnitState) -> None:
        """The unit has become whole."""
        self._missing -= self._remaining(state)

    def freed(self, state: UnitState) -> None:
        """The unit has been resharded."""
        self._missing += self._remaining(state)
        if self._next(state) < self._end:
            self._freed.append(state)

    @property
    def complete(self) -> bool:
        """Whether there was a pass of this kind before and the units of all upcoming uses are whole."""
        return self.foreseen and self._missing == 0

    @property
    def ready(self) -> int:
        """The number of units that this rank can reduce now."""
        return self.reductions.ready if self.reductions is not None else 0

    def _remaining(self, state: UnitState) -> int:
        """The number of upcoming uses of a unit."""
        places = self._places.get(state, ())
        return len(places) - bisect_left(places, self._cursor)

    def _next(self, state: UnitState) -> int:
        """The place of the unit's next use; past the last place if there is none."""
        remaining = self._remaining(state)
        return self._places[state][-remaining] if remaining else len(self._expected)

    def _advance(self, cursor: int) -> None:
        passed = self._expected[self._cursor : cursor]
        self._missing -= sum(not state.resident for state in passed)
        self._elements -= sum(state.unit.padded for state in passed[: self._end - self._cursor])
        self._cursor, self._end = cursor, max(cursor, self._end)
