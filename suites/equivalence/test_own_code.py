"""The client's own code: threads, errors that it catches, and hooks that it sets change nothing else."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume

from zerobench.bench.runner import Told
from zerobench.judge.command import ReplayCommand
from zerobench.judge.judgement import across_ranks
from zerobench.judge.parts import PARTS_OF_STEPS, Part
from zerobench.scenario import Read, Scenario
from zerobench.suites.support import own_code
from zerobench.suites.support.client import Changed
from zerobench.suites.support.covering import among
from zerobench.suites.support.many_events import eventful
from zerobench.suites.support.own_code import Failing
from zerobench.suites.support.rerun import error_of_test, pytest_command
from zerobench.suites.support.strategies import drawn_at_each_stage, models, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.suites.support.within_forwards import Moment, train_and_call

pytestmark = pytest.mark.ci


@drawn_at_each_stage(lambda stage: eventful(stage=stage, steps=3), share=0.075)
def test_threads_change_nothing(trials: Trials, scenario: Scenario) -> None:
    """An engine that is built in one thread and trains each step in another one has the bits of a single thread."""
    one = trials.nearest(scenario)
    got = trials.ask(ReplayCommand(one, trials.name), own_code.train_in_threads)
    _demand_same(trials, one, got, trials.run(one, PARTS_OF_STEPS))


@drawn_at_each_stage(
    lambda stage: eventful(
        stage=stage,
        world=among("world", 2, 3, 1),
        steps=3,
        resumes=(1,),
        loads=among("load part", "model", "all"),
    ),
    share=0.1,
)
def test_a_group_of_other_ranks(trials: Trials, scenario: Scenario) -> None:
    """An engine whose group has the last processes of a job, and not the first, has the same bits: it takes each rank's
    number, and the rank that others receive from, from its group."""
    one = trials.nearest(scenario, "world")
    assume(one.world < trials.pool.world and not trials.subject.needs_whole_world(one))
    pending = trials.pool.submit(
        own_code.train_on_the_last_ranks, trials.name, one, world=trials.pool.world, timeout=trials.runner.limit(one)
    )
    got = [each for each in Told(pending, pytest_command(one, trials.name)).result() if each is not None]
    _demand_same(trials, one, got, trials.run(one, PARTS_OF_STEPS))


@drawn_at_each_stage(
    lambda stage: st.tuples(
        eventful(
            stage=stage,
            steps=3,
            resumes=among("resumes", (1,), ()),
            loads_into=among("load into", "same", "new"),
            edits=among("edits", (1,), ()),
            reads=st.sampled_from([(Read("evaluation", 0, 1), Read("evaluation", 1, -1)), (Read("evaluation", 1, 0),)]),
            world=st.sampled_from([2, 3]),
            max_live=500_000_000,  # an evaluation leaves blocks whole, which no reading then shares out again
            persistence=0,
        ),
        among("default dtype", "bfloat16", "float64", "float32"),
    ),
    share=0.075,
)
def test_modes_of_the_client_change_nothing(trials: Trials, scenario: tuple[Scenario, own_code.Default]) -> None:
    """If the client evaluates in inference mode, makes its other calls but the micro-steps without gradients, and has
    set another default dtype, the run has the bits of one without all of this."""
    drawn, default = scenario
    one = trials.nearest(own_code.evaluated_in_inference_mode(trials.subject, drawn))
    default = own_code.without_finding(trials.subject, one, default)
    got = trials.ask(ReplayCommand(one, trials.name), own_code.train_in_modes, default)
    _demand_same(trials, one, got, trials.run(one, PARTS_OF_STEPS))


#: A leaf that the client leaves out has no other effect: it moves no buffer, and ends no step early.
_LEFT_OUT: dict[str, Any] = {"model": models(buffers=False), "steps": 3, "short_steps": (), "reads": ()}


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(stage=stage, **_LEFT_OUT),
        among("failing at", "last", "first", "backward"),
        st.integers(0, 5),
    ),
    share=0.1,
    least=0.0,
)
def test_a_failure_changes_nothing(trials: Trials, scenario: tuple[Scenario, own_code.Place, int]) -> None:
    """If the client's code raises in a forward on all ranks, and the client leaves the batch out, the run has the bits
    of one without it. If it raises in a backward, the engine refuses to go on, or has these bits."""
    if not trials.subject.survives_failures:
        pytest.skip(f"{trials.name} does not promise that it goes on after an error of the client's code")
    drawn_one, place, leaf = scenario
    one = drawn_one.but(world=1) if place == "backward" else drawn_one  # the ranks of others are reduced meanwhile
    one = trials.nearest(one, "world")
    failing = Failing(place, leaf % (one.steps * one.accumulation))
    got = trials.ask(ReplayCommand(one, trials.name), own_code.train_over_a_failure, failing)
    if whole := [each for each in got if each is not None]:
        _demand_same(trials, one, whole, trials.run(one, PARTS_OF_STEPS))


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(
            stage=stage,
            steps=3,
            poison=(),
            reads=st.just(Read("evaluation", 1, -1)).map(lambda one: (one, Read("evaluation", 2, -1))),
        ),
        among("failing at", "evaluation, last", "evaluation, first"),
        st.integers(0, 5),
    ),
    share=0.1,
)
def test_a_failed_evaluation_changes_nothing(trials: Trials, scenario: tuple[Scenario, own_code.Place, int]) -> None:
    """If the client's code raises in an evaluation on all ranks, before a step or within it, training and the
    evaluations that follow have the bits of the run without it."""
    if not trials.subject.survives_failures:
        pytest.skip(f"{trials.name} does not promise that it goes on after an error of the client's code")
    drawn_one, place, leaf = scenario
    one = trials.nearest(drawn_one, "reads")
    failing = Failing(place, leaf % (one.micro_steps_of(0) + one.micro_steps_of(1)))
    got = trials.ask(ReplayCommand(one, trials.name), own_code.train_over_a_failure, failing)
    _demand_same(trials, one, [each for each in got if each is not None], trials.run(one, PARTS_OF_STEPS))


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, steps=2, reads=()), share=0.075)
def test_inputs_with_gradients_change_nothing(trials: Trials, scenario: Scenario) -> None:
    """If the client's inputs require gradients, as those of an adversary or of a model before this one do, each has one
    after its micro-step, and the run has the bits of one whose inputs require none."""
    one = trials.nearest(scenario)
    got = trials.ask(ReplayCommand(one, trials.name), own_code.train_with_gradients_of_inputs)
    for rank, (_, without) in enumerate(got):
        if without:
            found = Changed(trials.name, one, rank, f"the gradient of the input of micro-step {without[0]}")
            raise error_of_test(found, one, trials.name)
    _demand_same(trials, one, [run for run, _ in got], trials.run(one, PARTS_OF_STEPS))


#: The observations of a step besides its loss.
_TRAINED: tuple[Part, ...] = ("norm", "skipped", "gradients", "parameters", "model_parameters", "optimizer_state")


#: Halves of gradients are exact in these; a parameter that rests in the first step has its hooks in the second one.
_HALVED: dict[str, Any] = {
    "dtype": among("dtype", "fp32", "bf16"),
    "steps": 2,
    "frozen_steps": among("frozen_steps", (), (0,)),
    "autocast": False,
    "reads": (),
}


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, **_HALVED), share=0.05)
def test_hooks_of_parameters_hold(trials: Trials, scenario: Scenario) -> None:
    """If hooks of the client halve the gradient of each parameter, the run has the bits of one with half of the
    losses."""
    if not trials.subject.keeps_hooks:
        pytest.skip(f"{trials.name} does not promise that hooks on parameters hold")
    _demand_halves(trials, scenario, "parameters")


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(stage=stage, **_HALVED),
        among(
            "late hooks",
            "output",
            "late parameters",
            "output's gradient",
            "late block",
            "late block's output",
            "late block's gradient",
            "removed from the block",
        ),
    ),
    share=0.175,  # for each kind one at each stage
)
def test_hooks_that_come_late_hold(trials: Trials, scenario: tuple[Scenario, own_code.Hooks]) -> None:
    """So it does if hooks that the client sets after the engine is built halve the model's output, the gradient of the
    output, or the gradient of each parameter. If one halves the input of a block, its output, or the gradient of its
    output, the run has the bits that it has if the client sets it before. Hooks that the client removes after a step
    have no effect from then on."""
    if not trials.subject.keeps_late_hooks:
        pytest.skip(f"{trials.name} does not promise that hooks hold that are set after it is built")
    drawn_one, hooks = scenario
    _demand_halves(trials, own_code.hooked(drawn_one, hooks), hooks)


def _demand_halves(trials: Trials, scenario: Scenario, hooks: own_code.Hooks) -> None:
    one = trials.nearest(scenario, "dtype", "autocast")
    assume(one.dtype != "fp16")
    command = ReplayCommand(one, trials.name)
    early = own_code.EARLIER.get(hooks)
    hooked, halved = (trials.ask(command, own_code.train_with_halves, each) for each in (hooks, early))
    _demand_same(trials, one, hooked, halved, _TRAINED)


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(stage=stage, steps=3, short_steps=(), reads=()),
        among("calls in a forward", "first", "last", "backward"),
        st.booleans(),
        st.integers(0, 8),
    ),
    share=0.1,
)
def test_calls_within_a_forward(trials: Trials, scenario: tuple[Scenario, Moment, bool, int]) -> None:
    """If code of the client reads all states within a forward, or at the beginning of its backward, it reads the values
    from before the micro-step, and the run has the same bits. Before the first module has run it may set parameters,
    too: the forward has them."""
    if not trials.subject.answers_within_forwards:
        pytest.skip(f"{trials.name} does not promise that its states can be read within a forward")
    drawn_one, moment, edits, leaf = scenario
    one = trials.nearest(drawn_one)
    edits = edits and moment == "first" and trials.subject.not_offered(one.but(edits=(1,))) is None
    chosen = leaf % (one.steps * one.accumulation), edits
    command = ReplayCommand(one, trials.name)
    got, expected = (trials.ask(command, train_and_call, each, *chosen) for each in (moment, "before"))
    _demand_same(trials, one, got, expected)


#: torch has one generator for all threads of a process, from which the client draws the values of an edit, too, and one
#: cache of autocast, which the end of a forward in any thread clears.
_SIDE_BY_SIDE: dict[str, Any] = {"model": models(dropout=0.0), "steps": 4, "edits": (), "autocast": False}


@drawn_at_each_stage(
    lambda stage: st.tuples(scenarios(stage=stage, **_SIDE_BY_SIDE), scenarios(**_SIDE_BY_SIDE)), share=0.05
)
def test_engines_train_side_by_side(trials: Trials, scenario: tuple[Scenario, Scenario]) -> None:
    """If two threads of each rank train an engine each at the same time, in groups of their own, each has the bits that
    it has alone."""
    if not trials.subject.trains_side_by_side:
        pytest.skip(f"{trials.name} does not promise that several engines train at the same time")
    one, other = (trials.nearest(each, "autocast", "edits") for each in scenario)
    other = other.but(world=one.world, poison=())
    assume(trials.offers(other))
    trials.pool.run(own_code.make_second_groups, world=trials.pool.world)
    got = trials.ask(ReplayCommand(one, trials.name), own_code.train_side_by_side, other)
    _demand_same(trials, one, got, trials.run(one, PARTS_OF_STEPS))


def _demand_same(
    trials: Trials, scenario: Scenario, got: Any, expected: Any, parts: tuple[Part, ...] = PARTS_OF_STEPS
) -> None:
    found = across_ranks(got, expected, parts)
    if found is not None:
        raise error_of_test(found, scenario, trials.name)
