"""Pass: one forward and its backward, or one evaluation, on this rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zerobench.engine.state.unit import UnitState


class Reductions(Protocol):
    """The gradients of the backward that is running, as the ranks' agreement sees them."""

    @property
    def ready(self) -> int:
        """The number of units, in the order of reduction, whose gradients this rank has."""

    def launch(self, count: int) -> None:
        """Start reducing the first ``count`` units; every rank does."""


class Pass:
    """The uses of units from the beginning of a forward to the end of its backward on all ranks, in order.

    It is born with the first use of a unit and gone at the end. The uses of the pass before, of the same kind, are
    those expected of this one: they say which units will be needed next.

    Args:
        kind: tells apart the passes whose orders of uses differ: training, evaluation, reading, a part alone.
        expected: the uses of the pass before; None if there was none.
    """

    def __init__(self, kind: str, expected: Sequence[UnitState] | None) -> None:
        self.kind, self._expected, self._cursor = kind, expected, 0
        self.used: list[UnitState] = []
        #: The units used last; nothing else has been used since, so they are whole.
        self.current: Sequence[UnitState] = ()
        #: The backward's, while one runs.
        self.reductions: Reductions | None = None

    def use(self, states: Sequence[UnitState]) -> None:
        """Note a use, and find it in the order expected."""
        self.current = states
        for state in states:
            self.used.append(state)
            upcoming = self.upcoming()
            if state in upcoming:
                self._cursor += upcoming.index(state) + 1

    def upcoming(self) -> Sequence[UnitState]:
        """The uses that are still to come if this pass is like the one before."""
        return (self._expected or ())[self._cursor :]

    @property
    def foreseen(self) -> bool:
        """Whether a pass of this kind went before."""
        return self._expected is not None

    @property
    def ready(self) -> int:
        """The number of units that this rank can reduce now."""
        return self.reductions.ready if self.reductions is not None else 0
