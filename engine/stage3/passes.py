"""Pass: one forward and its backward, or one evaluation, on this rank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

from zerobench.engine.state.unit import UnitState


class Reductions(Protocol):
    """The gradients of the running backward, as an interface for the ranks' agreement."""

    @property
    def ready(self) -> int:
        """The number of units, in the order of reduction, that this rank can reduce."""

    def launch(self, count: int) -> None:
        """Start reducing the first ``count`` units, on every rank."""


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
        self.current: Sequence[UnitState] = ()
        #: The reductions of the backward, if one is running.
        self.reductions: Reductions | None = None
        self._places: dict[UnitState, list[int]] = {}  # of each unit in the expected uses
        for place, state in enumerate(self._expected):
            self._places.setdefault(state, []).append(place)
        self._missing = sum(not state.resident for state in self._expected)

    def use(self, states: Sequence[UnitState]) -> None:
        """Record a use, and find it in the expected order."""
        self.current = states
        for state in states:
            self.used.append(state)
            remaining = self._remaining(state)
            if remaining:
                self._advance(self._places[state][-remaining] + 1)

    def upcoming(self) -> Iterator[UnitState]:
        """The remaining uses if this pass repeats the last one."""
        return (self._expected[place] for place in range(self._cursor, len(self._expected)))

    def allocated(self, state: UnitState) -> None:
        """The unit has become whole."""
        self._missing -= self._remaining(state)

    def freed(self, state: UnitState) -> None:
        """The unit has been resharded."""
        self._missing += self._remaining(state)

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

    def _advance(self, cursor: int) -> None:
        self._missing -= sum(not self._expected[place].resident for place in range(self._cursor, cursor))
        self._cursor = cursor
