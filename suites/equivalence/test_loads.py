"""Promises of a load that not every engine makes: the random numbers go on, and a load that fails changes nothing."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, reject

from zerobench.judge.command import ReplayCommand
from zerobench.judge.judgement import across_ranks
from zerobench.judge.parts import PARTS_OF_STEPS
from zerobench.scenario import Scenario
from zerobench.suites.support import client, loads
from zerobench.suites.support.covering import among
from zerobench.suites.support.rerun import error_of_test
from zerobench.suites.support.strategies import drawn, drawn_at_each_stage, models, optimizers, scenarios
from zerobench.suites.support.trials import Trials

_INTO = among("load into", "new", "trained", "same")


@drawn(
    scenarios(
        model=models(recompute="none"),
        steps=2,
        world=among("world", 2, 3, 1, 4),
        loads_into=_INTO,
        resumes=(1,),
        reads=(),
    ),
    share=0.1,
)
def test_random_numbers_go_on_after_a_load(trials: Trials, scenario: Scenario) -> None:
    """The numbers that a client draws after a load are, on each rank, those that it would have drawn after the save."""
    trials.skip_unless_it_saves()
    if not trials.subject.restores_generators:
        pytest.skip(f"{trials.name} does not promise that a load sets the random number generators")
    one = trials.nearest(scenario, "resumes")
    for rank, generators in enumerate(trials.ask(ReplayCommand(one, trials.name), loads.numbers_lost)):
        if generators:
            found = client.Changed(trials.name, one, rank, generators[0])
            raise error_of_test(found, one, trials.name)


#: The damage, the file by its number, and the steps before which the engine saves and loads.
_DAMAGES = st.tuples(
    among("load damage", "flipped", "cut", "missing"),
    st.integers(0, 5),
    st.sampled_from([(0, 1), (1, 2), (1, 1), (0, 2)]),
)


@drawn(st.tuples(scenarios(steps=3, reads=()), _DAMAGES), share=0.1)
def test_a_load_that_fails_changes_nothing(
    trials: Trials, scenario: tuple[Scenario, tuple[loads.Damage, int, tuple[int, int]]]
) -> None:
    """If a file of a saved state is damaged or missing and the load raises, the engine trains on with the bits of the
    run without the load, and has as many open descriptors."""
    trials.skip_unless_it_saves()
    if not trials.subject.survives_failed_loads:
        pytest.skip(f"{trials.name} does not promise that a load that fails leaves it unchanged")
    drawn_one, (damage, which, moments) = scenario
    one = trials.nearest(drawn_one.but(resumes=(1,)), "resumes").but(resumes=())
    got = trials.ask(ReplayCommand(one, trials.name), loads.train_over_a_failed_load, moments, damage, which)
    whole = [each.run for each in got if each.run is not None]
    if len(whole) < len(got):
        reject()
    for rank, each in enumerate(got):
        if each.descriptors > 0:
            left = client.Changed(trials.name, one, rank, "the open descriptors, by a load that fails")
            raise error_of_test(left, one, trials.name)
    found = across_ranks(whole, trials.run(one, PARTS_OF_STEPS), PARTS_OF_STEPS)
    if found is not None:
        raise error_of_test(found, one, trials.name)


#: All that a step shows, but the counters, which a load of a part may take from the saved state.
_TRAINED = tuple(part for part in PARTS_OF_STEPS if part not in ("progress", "reads"))


@pytest.mark.ci
@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(
            stage=stage,
            model=models(buffers=False),  # a load sets buffers, and an edit sets none
            steps=3,
            lr_factors=(),  # a load of a part may take the schedule that the engine steps
            edits=(),
            frozen_steps=(),  # a load of an engine whose block is frozen is a property of test_resume.py
            resumes=(1,),
            loads=among("load part", "without_optimizer", "model"),
            reads=(),
        ),
        st.sampled_from([(1, 2), (0, 1), (0, 2), (1, 1)]),
    ),
    share=0.1,
    least=0.0,
)
def test_a_trained_engine_keeps_what_a_load_leaves_out(
    trials: Trials, scenario: tuple[Scenario, tuple[int, int]]
) -> None:
    """If an engine that has trained loads the model alone, or everything but the optimizer's states, it goes on with
    the bits that it has if the client sets the parameters to the saved values: optimizer states, step counts, loss
    scale and hyperparameters stay."""
    trials.skip_unless_it_saves()
    drawn_one, moments = scenario
    one = trials.nearest(drawn_one, "resumes", "loads")
    assume(trials.subject.policies.masters_from == "original" or one.dtype == "fp32")
    assume(trials.offers(one.but(resumes=(), loads="all", edits=(1,))))
    one = one.but(resumes=())
    loaded, edited = (
        trials.ask(ReplayCommand(one, trials.name), loads.train_over_a_load_of_a_part, moments, edits)
        for edits in (False, True)
    )
    found = across_ranks(loaded, edited, _TRAINED)
    if found is not None:
        raise error_of_test(found, one, trials.name)


@st.composite
def _returns(draw: st.DrawFn, stage: st.SearchStrategy[int]) -> tuple[Scenario, tuple[int, ...], int, bool]:
    """A Scenario, the steps before which it is saved, the micro-steps of the step that a load drops, and whether one
    directory has all states. In half of them the first block rests in the step after the oldest state, and trains in
    the one that is dropped."""
    saves = draw(among("saved states", (0, 2), (0, 1, 2), (1, 2)))
    given: dict[str, Any] = {"steps": 3, "accumulation": among("accumulation", 2, 1, 3), "reads": ()}
    if draw(among("load rests", True, False)):
        given |= {"frozen_steps": saves[:1], "optimizer": optimizers(momentum=among("momentum", 0.9, 0.5))}
    begun = draw(among("load within a step", 1, 0, 2))
    return draw(scenarios(stage=stage, **given)), saves, begun, draw(among("states in one directory", True, False))


@pytest.mark.ci
@drawn_at_each_stage(
    _returns,
    share=0.1,
    of_bits=0.1,
    least=0.0,
)
def test_a_return_to_an_older_state(trials: Trials, scenario: tuple[Scenario, tuple[int, ...], int, bool]) -> None:
    """If an engine that has saved several states goes back to the oldest, it trains again with the bits of the first
    time. It may go back within a step, if it offers that: the gradients of this step are gone. If a directory keeps
    several states, they are in one, and it goes back to the newer ones afterwards, and to the oldest one again. A save
    leaves a file that the client has in the directory, and a load makes, changes and removes none."""
    trials.skip_unless_it_saves()
    drawn_one, saves, begun, tags = scenario
    resumed = drawn_one.but(resumes=saves[:1], loads_into="same")
    one = trials.nearest(resumed, "resumes", "loads_into").but(resumes=())
    begun = begun if trials.subject.loads_within_steps else 0
    tags = tags and trials.subject.keeps_tags
    got = trials.ask(ReplayCommand(one, trials.name), loads.train_and_return, saves, begun, tags)
    for rank, (_, _, lost) in enumerate(got):
        if lost:
            raise error_of_test(client.Changed(trials.name, one, rank, lost[0]), one, trials.name)
    found = across_ranks([again for _, again, _ in got], [first for first, _, _ in got], PARTS_OF_STEPS)
    if found is not None:
        raise error_of_test(found, one, trials.name)
