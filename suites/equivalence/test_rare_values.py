"""For every engine: values that no draw has."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest

from zerobench.scenario import Scenario
from zerobench.suites.support.offered import at_offered_stage
from zerobench.suites.support.rare_values import RARE_VALUES
from zerobench.suites.support.strategies import STAGES, drawn
from zerobench.suites.support.trials import Trials

#: Their length is theirs, and the number of stages is four.
pytestmark = pytest.mark.ci


@pytest.mark.parametrize("name", RARE_VALUES)
def test_rare_values(trials: Trials, name: str) -> None:
    """Many blocks, a large parameter, a rate, a gradient or a scale at the end of its range, and long runs, each at
    every stage: the canonical trainer's bits, or each step follows from the one before."""

    @drawn(st.builds(lambda stage, seed: RARE_VALUES[name].but(stage=stage, seed=seed), STAGES, _SEEDS), share=0.1)
    def check(scenario: Scenario) -> None:
        _demand(trials, trials.nearest(at_offered_stage(trials.subject, scenario)))

    check()


_SEEDS = st.integers(0, 1000)


def _demand(trials: Trials, scenario: Scenario) -> None:
    """The bits of the contract, or of each step by itself if the engine does not promise them."""
    if trials.subject.promises_bits:
        trials.agree(*trials.run_beside_canonical(scenario))
    else:
        trials.follows(scenario)
