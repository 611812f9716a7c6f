"""For every engine, whatever it promises: against itself, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume

from zerobench.driver import ALL
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import Difference, first_difference
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.oracles.canonical_trainer import canonical
from zerobench.recording import State
from zerobench.scenario import LossScale, Read, Scenario
from zerobench.suites.support.covering import among
from zerobench.suites.support.strategies import (
    SMALL_DYADIC,
    drawn_at_each_stage,
    models,
    optimizers,
    scenarios,
    skipping,
)
from zerobench.suites.support.trials import Trials
from zerobench.suites.support.turns import in_turns

#: A plain pytest holds the reference engine to these forms by turns, because it has the stronger ones each day.
pytestmark = pytest.mark.ci

_STATES: tuple[Part, ...] = ("parameters", "model_parameters", "optimizer_state")
_UNWATCHED: tuple[Part, ...] = tuple(part for part in ALL_PARTS if part != "reads")
_ALL_RANKS: tuple[Part, ...] = ("gradients", "norm", "skipped", "loss_scale", *_STATES)
_WHOLE = ["parameters", "model_parameters", "optimizer_state"]
#: fp16 training in which no sum rounds, so that scales show in no bit.
_EXACT_FP16: dict[str, Any] = {
    "model": models(**SMALL_DYADIC),
    "dtype": "fp16",
    "data": "dyadic",
    "autocast": False,
    "micro_batch": 2,
    "poison": (),
    "communication_dtype": None,
    "accumulator_dtype": None,
}


def _reading(kinds: Sequence[str], steps: int) -> st.SearchStrategy[tuple[Read, ...]]:
    """One to four readings, at every moment of a step; the kind and the moment of the first are covered."""
    rest = st.integers(0, steps - 1), st.integers(-1, 2), st.sampled_from([1, 2])
    first = st.builds(Read, among("read", *kinds), rest[0], among("read_at", 1, -1, 0, 2), rest[2])
    later = st.lists(st.builds(Read, st.sampled_from(kinds), *rest), max_size=3)
    return st.tuples(first, later).map(lambda drawn: (drawn[0], *drawn[1]))


def _demand_unread_bits(trials: Trials, scenario: Scenario) -> None:
    """Demand the bits of the same training without reads; readings in a row have the same values."""
    scenario = trials.nearest(scenario, "reads")
    read = trials.run(scenario)
    trials.agree(read, trials.run(scenario.but(reads=())), _UNWATCHED)
    for trajectory in read:
        once = replace(trajectory, steps=[replace(step, reads=_first(step.reads)) for step in trajectory.steps])
        twice = replace(trajectory, steps=[replace(step, reads=_second(step.reads)) for step in trajectory.steps])
        trials.agree_in_one_run(twice, once, ["reads"])


def _first(reads: State) -> State:
    """The readings that another one follows, by the name of the second."""
    again = {_again(name): name for name in reads}
    return {name: reads[again[name]] for name in reads if name in again}


def _second(reads: State) -> State:
    return {name: reads[name] for name in _first(reads)}


def _again(name: str) -> str:
    which, comma, rest = name.partition(", ")
    return f"{which}, again{comma}{rest}"


#: Some have a block that the first micro-step of a step alone uses, and a call comes after it.
_ROUTED: dict[str, Any] = {
    "routed": among("routed", True, False),
    "routes": among("routes", "micro_steps", "ranks"),
}


@drawn_at_each_stage(
    lambda stage: scenarios(stage=stage, accumulation=2, reads=_reading(_WHOLE, 2), model=models(**_ROUTED)),
    share=0.15,
)
def test_reading_changes_nothing(trials: Trials, scenario: Scenario) -> None:
    """Training has the same bits with and without readings of state, and a second reading in a row those of the
    first."""
    _demand_unread_bits(trials, scenario)


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        accumulation=2,
        reads=_reading(["evaluation"], 2),
        model=models(buffers=among("buffers", True, False), **_ROUTED),  # an evaluation may move buffers
    ),
    share=0.1,
)
def test_evaluation_changes_nothing(trials: Trials, scenario: Scenario) -> None:
    """Training has the same bits with and without evaluations, and a second evaluation in a row that of the first."""
    _demand_unread_bits(trials, scenario)


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage, steps=3, reads=st.just(Read("gradients", 1, 1)).map(lambda one: (one,)), accumulation=1
    ),
    share=0.1,
)
def test_reading_gradients_changes_nothing(trials: Trials, scenario: Scenario) -> None:
    """Training has the same bits if the gradients of an earlier step are read."""
    _demand_unread_bits(trials, scenario)


@drawn_at_each_stage(lambda stage: scenarios(stage=stage), share=0.1)
def test_ranks_agree(trials: Trials, scenario: Scenario) -> None:
    """All ranks have the same gradients, norms, decisions and loss scales, and after the last step the same states."""
    _demand_agreement(trials, trials.nearest(scenario))


def _demand_agreement(trials: Trials, scenario: Scenario) -> None:
    first, *others = trials.run(scenario)
    for other in others:
        trials.agree_in_one_run(other, first, _ALL_RANKS)


#: Scales with which some elements overflow in fp16, and so some ranks' shards. A dynamic scale goes down until the
#: gradients fit, and up again: the last step before they fit, and the first after, overflows in a few elements only.
_LARGE_SCALES = st.builds(LossScale, static=st.sampled_from([2.0**12, 2.0**15])) | st.builds(
    LossScale,
    initial_power=st.sampled_from([14, 16, 18]),
    window=st.integers(1, 2),
    hysteresis=among("hysteresis", 1, 2),
)


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        world=among("world", 2, 3, 4),
        dtype="fp16",
        steps=6,
        poison=(),
        reads=(),
        communication_dtype=None,
        accumulator_dtype=None,
        loss_scale=_LARGE_SCALES,
    ),
    share=0.15,
)
def test_ranks_agree_on_overflow(trials: Trials, scenario: Scenario) -> None:
    """All ranks skip the same steps and have the same loss scales if gradients overflow in some elements only."""
    _demand_agreement(trials, trials.nearest(scenario, "dtype", "loss_scale"))


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(
            stage=stage,
            steps=1,
            loss_scale=LossScale(static=1.0),
            **_EXACT_FP16,
        ),
        st.sampled_from([0.25, 2.0, 8.0]),
    ),
    share=0.1,
)
def test_static_scale_changes_nothing(trials: Trials, scenario: tuple[Scenario, float]) -> None:
    """A static loss scale that is a power of two changes no bit, if fp16 neither over- nor underflows."""
    one = trials.nearest(scenario[0], "dtype", "loss_scale", "data")
    other = one.but(loss_scale=LossScale(static=scenario[1]))
    parts: tuple[Part, ...] = ("losses", "norm", "skipped", "gradients", *_STATES)
    base, scaled = trials.run(one, parts), trials.run(other, parts)
    assume(not any(run[0].steps[0].skipped for run in (base, scaled)))
    trials.agree(scaled, base, parts)


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        steps=3,
        optimizer=optimizers(name="sgd", lr=2.0**-4, weight_decay=0.0, momentum=0.0),
        # it grows after each good step; or it never grows, and falls after the first step if that is bad
        loss_scale=st.builds(
            LossScale,
            initial_power=st.just(4),
            window=among("window", 1, 1000),
            hysteresis=among("hysteresis", 1, 2),
        ),
        **_EXACT_FP16 | {"poison": among("bad_steps", (), ((0, 0),))},
    ),
    share=0.1,
)
def test_dynamic_scale_equals_static(trials: Trials, scenario: Scenario) -> None:
    """On good steps a dynamic scale trains like a static one, also on the step on which it grows or falls and on the
    next."""
    scenario = trials.nearest(scenario, "dtype", "loss_scale", "data")
    static = scenario.but(loss_scale=LossScale(static=2.0**4))
    right, constant = (canonical(each, ALL) for each in (scenario, static))
    assume(first_difference(right, constant, ("gradients", "skipped")) is None)  # nothing underflows
    parts: tuple[Part, ...] = ("losses", "norm", "skipped", "gradients", *_STATES)
    got, expected = trials.run(scenario, parts), trials.run(static, parts)
    bad = scenario.bad_steps
    assume(not any(step.skipped for run in (got, expected) for n, step in enumerate(run[0].steps) if n not in bad))
    scale, right_scale = (run.steps[-1].loss_scale for run in (got[0], right))
    if scale != right_scale:
        which = trials.name, "the contract", scenario, 0, 2
        found = Difference(*which, "loss_scale", "", str(scale), str(right_scale))
        raise trials.wrong(found, ReplayCommand(scenario, trials.name))
    trials.agree(got, expected, parts)


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(stage=stage, steps=3, reads=(), poison_by=among("poison_by", "inf", "nan", "backward")),
        st.integers(0, 2),
        st.integers(0, 11),
    ),
    share=0.1,
)
def test_overflow_on_one_rank(trials: Trials, scenario: tuple[Scenario, int, int]) -> None:
    """If a gradient is not finite on any one rank, every rank skips, and no state moves; also if the engine clips by
    another type of norm, which may find an overflow in another way."""
    drawn, step, leaf = scenario
    one = trials.nearest(skipping(drawn, step, leaf), "poison")
    others = (one.but(norm_type=each) for each in trials.subject.norm_types if each != one.norm_type)
    for each in (one, *filter(trials.offers, others)):
        _demand_skipped(trials, each, step)


def _demand_skipped(trials: Trials, one: Scenario, step: int) -> None:
    for trajectory in trials.run(one, _STATES, keep=ALL):
        if not trajectory.steps[step].skipped:
            which = trials.name, "the contract", one, trajectory.rank, step
            raise trials.wrong(Difference(*which, "skipped", "", "False", "True"), ReplayCommand(one, trials.name))
        if step:
            earlier, last = trajectory.steps[:step], trajectory.steps[step]
            moved, still = (replace(trajectory, steps=[*earlier, each]) for each in (last, earlier[-1]))
            trials.agree_in_one_run(moved, still, _STATES)


@drawn_at_each_stage(
    lambda stage: in_turns(
        st.integers(1, 3).flatmap(
            lambda world: st.tuples(
                *(scenarios(stage=stage, world=world, model=models(width=st.sampled_from([3, 8])), reads=()),) * 2
            )
        )
    ),
    share=0.05,
)
def test_engines_share_nothing(trials: Trials, scenario: tuple[Scenario, Scenario]) -> None:
    """An engine beside another one in the same processes, and one built after it, train as if alone."""
    one, other = (trials.nearest(each, "world") for each in scenario)
    trials.agree_in_turns(one, other)
