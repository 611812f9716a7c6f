"""The client's side: its other calls change no bit, and no call of the engine changes an object of the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st

from zerobench.judge.command import ReplayCommand
from zerobench.judge.judgement import across_ranks
from zerobench.judge.parts import PARTS_OF_STEPS
from zerobench.recording import Trajectory
from zerobench.scenario import Read, Scenario
from zerobench.suites.support import client
from zerobench.suites.support.covering import among
from zerobench.suites.support.many_events import STEPS, eventful
from zerobench.suites.support.rerun import error_of_test
from zerobench.suites.support.strategies import drawn_at_each_stage, models, scenarios
from zerobench.suites.support.trials import Trials

#: The property evaluates by itself; the Scenario says so, as a known finding may be about evaluations.
_EVALUATION = (Read("evaluation"),)


def _with_saves(one: Scenario) -> st.SearchStrategy[tuple[Scenario, tuple[int, ...]]]:
    """The Scenario, and the steps before which it saves; in a run of many events counts are under way then."""
    saves = [(3,), (3, 3, 6), (1, 3)] if one.steps == STEPS else [(1,), (0, 2), (1, 1, 2), (2,)]
    return st.tuples(st.just(one), st.sampled_from(saves))


@drawn_at_each_stage(
    lambda stage: eventful(stage=stage, steps=3, reads=()).flatmap(_with_saves),
    share=0.1,
    of_bits=0.075,
    least=0.25,
)
def test_saving_changes_nothing(trials: Trials, scenario: tuple[Scenario, tuple[int, ...]]) -> None:
    """An engine that saves and trains on, before the first step, after a skipped one, or twice in a row, has the bits
    of the same run without a save."""
    trials.skip_unless_it_saves()
    drawn, saves = scenario
    one = trials.nearest(drawn.but(resumes=tuple(sorted(set(saves)))), "resumes").but(resumes=())
    got = trials.ask(ReplayCommand(one, trials.name), client.train_and_save, saves)
    _demand_same(trials, got, trials.run(one, PARTS_OF_STEPS))


@drawn_at_each_stage(
    lambda stage: eventful(
        stage=stage,
        steps=4,
        clip=among("clip", 0.05, 8.0, 0.0),
        gradient_edits=among("gradient_edits", (0, 1), ()),
        reads=(),
    ),
    share=0.125,
)
def test_outcomes_need_no_reader(trials: Trials, scenario: Scenario) -> None:
    """If the client asks for the outcome of the last step alone, this step has the bits that it has if all are asked
    for: no update, loss scale, step count or norm of edited gradients waits for a reader, and none for a batch, whose
    memory the client uses again. Half of the steps have one micro-step, so that an engine may know its end before."""
    one = trials.nearest(scenario.but(accumulation=1) if scenario.seed % 2 else scenario)
    expected = trials.run(one, PARTS_OF_STEPS, keep=frozenset({"gradients"}))
    unread = trials.ask(ReplayCommand(one, trials.name), client.train_unread)
    got = [replace(last, steps=[*whole.steps[:-1], *last.steps]) for last, whole in zip(unread, expected, strict=True)]
    _demand_same(trials, got, expected)


def _demand_same(trials: Trials, got: Sequence[Trajectory], expected: Sequence[Trajectory]) -> None:
    found = across_ranks(got, expected, PARTS_OF_STEPS)
    if found is not None:
        raise error_of_test(found, found.scenario, trials.name)


@drawn_at_each_stage(
    lambda stage: scenarios(stage=stage, model=models(dropout=0.0, recompute="none"), steps=2, reads=_EVALUATION),
    share=0.075,
    of_bits=0.05,
)
def test_the_client_keeps_its_state(trials: Trials, scenario: Scenario) -> None:
    """No call changes the batch, values that the client sets, the state of a random generator, a setting of torch, the
    mode of a module, a parameter's ``requires_grad``, or a hyperparameter, and no step or call between steps an
    attribute that the client has given to a parameter or a buffer once the engine was built, so that the client's own
    code goes on as without the engine. The engine keeps no value that the client sets: a later write to its memory
    changes nothing. A reading's values stay as they are until the client trains on, whatever it reads meanwhile."""
    one = trials.nearest(scenario, "reads")
    offers = client.Offers.of(trials.subject, one)
    for rank, things in enumerate(trials.ask(ReplayCommand(one, trials.name), client.changed, offers)):
        if things:
            found = client.Changed(trials.name, one, rank, things[0])
            raise error_of_test(found, one, trials.name)
