"""Pairs of Scenarios for engines that take turns: which is built first, and which is closed first."""

from __future__ import annotations

from hypothesis import strategies as st

from zerobench.scenario import Scenario
from zerobench.suites.support.covering import among

#: Steps after which an engine trains on once the other one is closed: at the end of a turn it takes one more.
_ON = 2


@st.composite
def in_turns(draw: st.DrawFn, pairs: st.SearchStrategy[tuple[Scenario, Scenario]]) -> tuple[Scenario, Scenario]:
    """A pair; the first one, which is judged, is built first or second, and lasts longer, as long or less.

    The first one is built first if its seed is even, and takes a step within each step of the other one if half of
    its seed is odd (``train_in_turns`` in zerobench/bench/runner.py).
    """
    one, other = draw(pairs)
    second = draw(among("built", "first", "second")) == "second"
    within = draw(among("turns", "within a step", "steps")) == "within a step"
    lasts = draw(among("lasts", "longer", "as long", "less", rare=True))
    steps, seed = max(one.steps, other.steps), 4 * (one.seed // 4) + 2 * within + second
    return (
        one.but(seed=seed, steps=other.steps + _ON if lasts == "longer" else steps),
        other.but(steps=other.steps if lasts == "longer" else steps + _ON if lasts == "less" else steps),
    )
