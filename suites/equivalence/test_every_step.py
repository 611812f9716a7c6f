"""For every engine, whatever it promises: each step follows from the one before, and exact data have exact bits."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
import pytest
from hypothesis import assume

from zerobench.driver import ALL
from zerobench.judge.judgement import is_exact
from zerobench.judge.parts import Part
from zerobench.oracles.canonical_trainer import canonical
from zerobench.scenario import LossScale, Read, Scenario
from zerobench.suites.support.covering import among
from zerobench.suites.support.sizes import boundaries
from zerobench.suites.support.strategies import (
    OFTEN_SCHEDULED,
    ONE_GROUP,
    SMALL_DYADIC,
    drawn_at_each_stage,
    models,
    optimizers,
    scenarios,
)
from zerobench.suites.support.trials import Trials, exact

#: A plain pytest holds the reference engine to these forms by turns, because it has the stronger ones each day.
pytestmark = pytest.mark.ci

#: Dividing a loss by A rounds nothing, so that every engine has the same bits of a leaf's gradient.
_EXACT_SHARES = among("accumulation", 1, 2, 4)
#: Also one by which dividing rounds: the bound has what that changes.
_SHARES = among("accumulation", 1, 2, 4, 3)
_ROUTES = among("routes", "steps", "micro_steps", "ranks")
_INITIAL = tuple(Read(what, 0, 0) for what in ("parameters", "model_parameters", "optimizer_state"))
_EXACT: tuple[Part, ...] = ("losses", "gradients", "parameters", "model_parameters")


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        accumulation=_SHARES,
        reads=(),
        momentum_factors=among("momentum_factors", (0.5, 0.0, 1.0), (), (0.25,)),  # with each rule
    ),
    share=0.2,
)
def test_each_step_follows_from_the_one_before(trials: Trials, scenario: Scenario) -> None:
    """Losses, gradients, norm, clipping, update and rounding of a step are right for the state that the engine itself
    had before it: bit for bit, or within a derived bound."""
    trials.follows(trials.nearest(scenario, "accumulation"))


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        accumulation=_SHARES,
        edits=among("edits", (1,), (), (0,)),
        gradient_edits=among("gradient_edits", (), (0, 1)),
        clip=among("clip", 0.05, 8.0, 0.0),
        optimizer=optimizers(third_group=among("third_group", False, True)),
    ),
    share=0.4,  # an engine without a promise may offer one stage alone
    of_bits=0.05,
)
def test_each_step_follows_between_readings(trials: Trials, scenario: Scenario) -> None:
    """So it is if the client evaluates, or reads states, before, within and after steps: whatever a call keeps or makes
    whole is not used in a later step, also if the client has set parameters or edited gradients since."""
    trials.follows(trials.nearest(scenario, "accumulation"))


@drawn_at_each_stage(
    lambda stage: scenarios(stage=stage, world=among("world", 2, 3, 4), accumulation=_EXACT_SHARES, reads=()).flatmap(
        lambda one: boundaries(one.model).map(lambda sizes: one.but(**sizes))
    ),
    share=0.1,
)
def test_buckets_that_end_with_a_parameter_follow(trials: Trials, scenario: Scenario) -> None:
    """A step follows if a bucket or a sub-group has exactly a parameter's size, one less or one more."""
    trials.follows(trials.nearest(scenario, "accumulation"))


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        world=among("world", 2, 3, 4),
        dtype=among("dtype", "bf16", "fp16"),
        communication_dtype="fp32",
        accumulator_dtype="fp32",
        accumulation=among("accumulation", 1, 4),  # a sum of two has no third contribution, before which it may round
        schedule=among("schedule", "auto", "boundary"),
        reads=(),
    ),
    share=0.2,
)
def test_sums_in_fp32_follow(trials: Trials, scenario: Scenario) -> None:
    """If gradients in 16 bits are sent and accumulated in fp32, their sums have errors of fp32 alone."""
    trials.follows(trials.nearest(scenario, "accumulation"))


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage, steps=st.integers(2, 3), accumulation=among("accumulation", 2, 3, 4), schedule="boundary"
    ),
    share=0.1,
)
def test_one_reduction_follows(trials: Trials, scenario: Scenario) -> None:
    """A step follows whose micro-steps add their gradients on each rank before one reduction, as in ``no_sync``."""
    trials.follows(trials.nearest(scenario, "accumulation"))


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        model=models(routed=True, routes=_ROUTES),
        optimizer=optimizers(second_group=among("second_group", True, False), momentum=among("momentum", 0.9, 0.5)),
        steps=st.integers(3, 4),
        accumulation=among("accumulation", 2, 4),
        reads=(),
    ),
    share=0.2,
)
def test_a_block_that_rests(trials: Trials, scenario: Scenario) -> None:
    """If a block is used by no leaf of a step, by some ranks or in some micro-steps, no stale gradient, step count or
    weight of it comes back."""
    trials.follows(trials.nearest(scenario, "accumulation", "routed"))


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        dtype="fp16",
        accumulation=_EXACT_SHARES,
        steps=4,
        reads=(),
        lr_factors=OFTEN_SCHEDULED,
        loss_scale=st.builds(
            LossScale,
            # the large ones overflow in some elements, on some ranks
            initial_power=among("initial_power", 18, 3, 14, 8),
            window=st.sampled_from([1, 2, 1000]),  # the last one never grows the scale, but overflows lower it
            hysteresis=st.integers(1, 2),
            consecutive_hysteresis=st.booleans(),
            minimum=st.sampled_from([0.25, 1.0, 8.0]),
        ),
        poison=st.sets(st.integers(0, 3), max_size=3).map(lambda bad: tuple((step, 0) for step in sorted(bad))),
    ),
    share=0.1,
)
def test_dynamic_loss_scale_follows(trials: Trials, scenario: Scenario) -> None:
    """The scale moves as DeepSpeed's state machine says, or that of torch's GradScaler, and a step follows whether it
    was skipped, lowered the scale or raised it. If a leaf's own gradient overflows, it is skipped, and if it is not,
    every sum that did not overflow is right."""
    trials.follows(trials.nearest(scenario, "accumulation", "dtype", "loss_scale", "poison"))


def _dyadic(stage: st.SearchStrategy[int], steps: int) -> st.SearchStrategy[Scenario]:
    return scenarios(
        stage=stage,
        model=models(**SMALL_DYADIC, routed=True, routes=_ROUTES),
        dtype="fp32",
        data="dyadic",
        autocast=False,
        steps=steps,
        micro_batch=1,
        accumulation=among("accumulation", 2, 1, 3, 4),
        clip=0.0,
        poison=(),
        optimizer=optimizers(name="sgd", lr=2.0**-2, weight_decay=0.0, momentum=0.0, **ONE_GROUP),
        communication_dtype=None,
        accumulator_dtype=None,
    )


@drawn_at_each_stage(partial(_dyadic, steps=2), share=0.1, least=0.25)
def test_exact_steps(trials: Trials, scenario: Scenario) -> None:
    """On dyadic data two steps are exact: losses, gradients and parameters of both have the same bits on every
    engine, in every order of adding, with every setting."""
    scenario = trials.nearest(scenario, "data", "clip", "dtype", "communication_dtype", "routed")
    expected = canonical(scenario, ALL, policies=trials.subject.policies)
    assume(is_exact(expected, exact(scenario, trials.subject.policies)))
    trials.agree(trials.run(scenario, _EXACT, keep=ALL), expected, _EXACT, zeros_alike=True)


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, steps=1, reads=_INITIAL, poison=(), edits=()), share=0.1)
def test_building_is_inert(trials: Trials, scenario: Scenario) -> None:
    """Before the first step the parameters are the model's, in fp32 and in the Scenario's dtype, and the states are
    those that the optimizer begins with, bit for bit."""
    scenario = trials.nearest(scenario, "reads")
    trajectories, expected = trials.run_beside_canonical(scenario, ["reads"])
    trials.agree(trajectories, expected, ["reads"])
