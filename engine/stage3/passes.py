"""Pass: one forward and its backward, or one evaluation, on this rank."""

from __future__ import annotations

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


class Pass:
    """The uses of units from the beginning of a forward to the end of its backward on all ranks, in order.

    It exists from the first use of a unit to the end. This pass is expected to repeat the uses of the last pass of its
    kind; the next units are predicted from them.

    Args:
        kind: training, evaluation, reading, or a part alone; the order of uses differs between kinds.
        expected: the uses of the last pass of this kind; None if there was none.
    """

    def __init__(self, kind: str, expected: Sequence[UnitState] | None) -> None:
        self.kind, self._expected, self._cursor = kind, expected, 0
        self.used: list[UnitState] = []
        #: The units used last; no other unit has been used since, so they are whole.
        self.current: Sequence[UnitState] = ()
        #: The reductions of the backward, if one is running.
        self.reductions: Reductions | None = None

    def use(self, states: Sequence[UnitState]) -> None:
        """Record a use, and find it in the expected order."""
        self.current = states
        for state in states:
            self.used.append(state)
            upcoming = self.upcoming()
            if state in upcoming:
                self._cursor += upcoming.index(state) + 1

    def upcoming(self) -> Sequence[UnitState]:
        """The remaining uses if this pass repeats the last one."""
        return (self._expected or ())[self._cursor :]

    @property
    def foreseen(self) -> bool:
        """Whether there was a pass of this kind before."""
        return self._expected is not None

    @property
    def ready(self) -> int:
        """The number of units that this rank can reduce now."""
        return self.reductions.ready if self.reductions is not None else 0
