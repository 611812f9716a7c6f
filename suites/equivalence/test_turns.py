"""Engines that share a process: taking turns, closed and built again; and runs of many steps."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import assume

from zerobench.scenario import Scenario
from zerobench.suites.support.covering import among
from zerobench.suites.support.strategies import DYNAMIC, STATIC, drawn, models, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.suites.support.turns import in_turns

#: A rate that still changes after twenty steps.
_DECAY = tuple(1 / (1 + step) for step in range(25))
#: A client's changes in several steps, in a row or apart.
_FROZEN = among("frozen_steps", (2, 3, 4), (), (1, 5))
_EDITS = among("edits", (6, 7), (), (3, 8))
_GRADIENT_EDITS = among("gradient_edits", (), (7, 8), (2, 6))
_SMALL = models(width=st.sampled_from([3, 5, 8]), hidden=st.sampled_from([(7,), (2, 7)]))


def _twin(scenario: Scenario) -> Scenario:
    """The Scenario with other values, whose first step is skipped: its step counts lag behind those of the other."""
    return scenario.but(seed=scenario.seed + 1, poison=() if scenario.poison else ((0, 0),))


def _pairs(world: int) -> st.SearchStrategy[tuple[Scenario, Scenario]]:
    one = scenarios(world=world, model=_SMALL)
    return st.tuples(one, one) | one.map(lambda each: (each, _twin(each)))


#: Two Scenarios on as many ranks; some pairs have the same model and settings.
_PAIRS = among("world", 1, 2, 3).flatmap(_pairs)


@drawn(in_turns(_PAIRS), share=0.3)
def test_engines_take_turns(bits: Trials, scenario: tuple[Scenario, Scenario]) -> None:
    """An engine that takes turns with another one in the same processes, goes on after that is closed, or is built
    after it is closed, trains as if alone."""
    one, other = scenario
    assume(bits.offers(one) and bits.offers(other))
    bits.agree_in_turns(one, other)


@drawn(
    scenarios(
        world=among("world", 1, 2),
        model=_SMALL,
        steps=st.integers(20, 50),
        accumulation=1,
        loss_scale=STATIC | DYNAMIC,
        lr_factors=among("lr_factors", _DECAY, ()),
        resumes=among("load late", (9, 11), ()),  # the names of these checkpoints have one digit and two
        frozen_steps=_FROZEN,
        edits=_EDITS,
        gradient_edits=_GRADIENT_EDITS,
    ),
    share=0.2,
)
def test_many_steps(bits: Trials, scenario: Scenario) -> None:
    """Twenty to fifty steps give the canonical trainer's bits: step counts, schedules and loss scales do not drift;
    also over loads after the ninth step, and if a client freezes a block, sets parameters or edits gradients in several
    steps."""
    assume(bits.offers(scenario))
    bits.agree(*bits.run_beside_canonical(scenario))
