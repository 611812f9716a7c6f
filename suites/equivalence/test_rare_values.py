"""For every engine: values that no draw has."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest

from zerobench.ranks import Pool
from zerobench.scenario import Scenario
from zerobench.suites.support.offered import PLAINEST, at_offered_stage
from zerobench.suites.support.rare_values import AT_STAGE_0, OF_BITS, RARE_VALUES, REQUIRED, SEVEN_RANKS, SHARES
from zerobench.suites.support.strategies import STAGES, drawn
from zerobench.suites.support.trials import IDLE, Trials

#: Their length is theirs, and the number of stages is four.
pytestmark = pytest.mark.ci


@pytest.mark.parametrize("name", RARE_VALUES)
def test_rare_values(trials: Trials, name: str) -> None:
    """Many blocks, a large parameter, a rate, a gradient or a scale at the end of its range, and long runs, each at
    every stage: the canonical trainer's bits, or each step follows from the one before."""

    of_bits = trials.subject.promises_bits
    if name in OF_BITS and not of_bits:
        pytest.skip("a value for engines that promise the contract's bits")
    at_stage_0 = name in AT_STAGE_0 and not of_bits
    if at_stage_0 and (reason := trials.subject.not_offered(PLAINEST.but(stage=0))) is not None:
        pytest.skip(reason)

    @drawn(_at(st.just(0) if at_stage_0 else STAGES, RARE_VALUES[name]), share=SHARES.get(name, 0.1))
    def check(scenario: Scenario) -> None:
        plain = PLAINEST.but(settings=scenario.settings, world=scenario.world) if scenario.settings else PLAINEST
        at_stage = at_offered_stage(trials.subject, scenario, plain)
        _demand(trials, trials.nearest(at_stage, *REQUIRED.get(name, ())))

    check()


def test_seven_ranks(trials: Trials) -> None:
    """The same on more ranks than any draw has."""
    with Pool(SEVEN_RANKS.world, idle=IDLE) as ranks:
        of_seven = Trials(ranks, trials.name)

        @drawn(_at(STAGES, SEVEN_RANKS), share=0.05)
        def check(scenario: Scenario) -> None:
            _demand(of_seven, of_seven.nearest(at_offered_stage(of_seven.subject, scenario), "world"))

        check()


def _at(stages: st.SearchStrategy[int], scenario: Scenario) -> st.SearchStrategy[Scenario]:
    return st.builds(lambda stage, seed: scenario.but(stage=stage, seed=seed), stages, st.integers(0, 1000))


def _demand(trials: Trials, scenario: Scenario) -> None:
    """The bits of the contract, or of each step by itself if the engine does not promise them."""
    if trials.subject.promises_bits:
        trials.agree(*trials.run_beside_canonical(scenario))
    else:
        trials.follows(scenario)
