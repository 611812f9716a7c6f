"""Engines that step their units in reverse order: the contract's numbers change only if a store depends on it."""

from __future__ import annotations

import itertools
from typing import Any

from zerobench.suites.meta.mutants.offload import ToFiles, ToHost, offloading_stores
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class RightInReverse(Mutant):
    """Steps the last unit first, with all states on the device. It must pass, as must those below."""

    def sabotage(self) -> None:
        stepper = self.engine.stepper
        step = stepper.step

        def backwards(*args: Any) -> None:
            stepper.states.reverse()
            try:
                step(*args)
            finally:
                stepper.states.reverse()

        stepper.step = backwards  # type: ignore[method-assign,assignment]


class RightInReverseOnTheHost(ToHost, RightInReverse):
    """With the optimizer's states in host memory."""


class RightInReverseInFiles(ToFiles, RightInReverse):
    """In files; the sub-group read ahead is never the next one."""


class HandsOutTheNextSubGroup(ToFiles, RightInReverse):
    """The store ignores the unit that the caller asks for: it goes on in its own order."""

    points_at = Points("optimizer_state", "parameters")

    def sabotage(self) -> None:
        super().sabotage()
        for store in offloading_stores(self):
            fetch, groups = store._fetch, itertools.cycle(store._order)
            store._fetch = lambda group, fetch=fetch, groups=groups: fetch(next(groups))


#: Right engines.
REVERSED: list[type[Mutant]] = [RightInReverse, RightInReverseOnTheHost, RightInReverseInFiles]
