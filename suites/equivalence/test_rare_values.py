"""For every engine: values that no draw has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest

from zerobench.driver import ALL
from zerobench.judge.judgement import across_ranks
from zerobench.judge.parts import ALL_PARTS
from zerobench.ranks import Pool
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.suites.support.offered import PLAINEST, at_offered_stage
from zerobench.suites.support.rare_values import (
    AT_STAGE_0,
    LARGE_MODEL,
    NINE_RANKS,
    OF_BITS,
    RARE_VALUES,
    REQUIRED,
    SHARES,
)
from zerobench.suites.support.rerun import error_of_test
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


def test_nine_ranks(trials: Trials) -> None:
    """The same on more ranks than any draw has."""
    with Pool(NINE_RANKS.world, idle=IDLE) as ranks:
        of_nine = Trials(ranks, trials.name)

        @drawn(_at(STAGES, NINE_RANKS), share=0.05)
        def check(scenario: Scenario) -> None:
            _demand(of_nine, of_nine.nearest(at_offered_stage(of_nine.subject, scenario), "world"))

        check()


def test_a_large_model(trials: Trials) -> None:
    """The same of a model that no bucket of the usual 25 MiB holds whole, whatever size the Scenario gives."""

    @drawn(_at(STAGES, LARGE_MODEL), share=0.05)
    def check(scenario: Scenario) -> None:
        _demand(trials, trials.nearest(at_offered_stage(trials.subject, scenario)))

    check()


def _at(stages: st.SearchStrategy[int], scenario: Scenario) -> st.SearchStrategy[Scenario]:
    return st.builds(lambda stage, seed: scenario.but(stage=stage, seed=seed), stages, st.integers(0, 1000))


def _demand(trials: Trials, scenario: Scenario) -> None:
    """The bits of the contract; or, if the engine does not promise them, of each step by itself, and those of the same
    run of which nobody reads a state: what an engine puts off until a reading is there without one, too."""
    if trials.subject.promises_bits:
        trials.agree(*trials.run_beside_canonical(scenario))
        return
    trials.follows(scenario)
    if not trials.offers(unread := scenario.but(reads=())):
        return
    expected = [_with_the_last_states(each) for each in trials.run(unread, keep=ALL)]
    found = across_ranks(trials.run(unread), expected, ALL_PARTS)
    if found is not None:
        raise error_of_test(found, unread, trials.name)


def _with_the_last_states(run: Trajectory) -> Trajectory:
    """The recording with the states of its last step alone."""
    nothing: dict[str, Any] = {"gradients": {}, "parameters": {}, "model_parameters": {}, "optimizer_state": {}}
    return replace(run, steps=[*(replace(step, **nothing) for step in run.steps[:-1]), run.steps[-1]])
