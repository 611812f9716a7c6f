"""For every engine that saves: what another number of ranks loads goes on as if nothing had changed.

An engine that resumes on as many ranks alone loads there, in a new engine or one that has trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume

from zerobench.bench.runner import Reading, in_order
from zerobench.driver import ALL
from zerobench.judge.command import ReplayCommand
from zerobench.judge.judgement import disagreement, is_exact
from zerobench.judge.parts import Part
from zerobench.oracles.canonical_trainer import canonical
from zerobench.scenario import LossScale, Optimizer, Scenario
from zerobench.suites.support.covering import among
from zerobench.suites.support.offered import at_offered_stage, offered_stages
from zerobench.suites.support.scalers import of_a_scaler
from zerobench.suites.support.sizes import EXACT_WORLD_PAIRS, WORLD_PAIRS, leaves_of
from zerobench.suites.support.strategies import (
    DYNAMIC,
    SMALL_DYADIC,
    STATIC,
    USED_ONCE,
    after_loads,
    drawn,
    models,
    optimizers,
    scenarios,
)
from zerobench.suites.support.trials import Trials, exact

pytestmark = pytest.mark.ci

_PLAIN = Scenario(optimizer=Optimizer(name="adamw"), resumes=(1,))
_VALUES: tuple[Part, ...] = ("gradients", "parameters", "optimizer_state")
#: The numbers of ranks before and after, so that a step has as many leaves.
_OF_TWO_LEAVES = st.sampled_from([(1, 2), (2, 1)])
_OF_SEVERAL_LEAVES = among("load worlds", *WORLD_PAIRS)


#: The engine that goes on is another one than that which saved.
_INTO = among("load into", "new", "trained")


def _resuming(saved: int = 1, after: int = 1, **fixed: Any) -> st.SearchStrategy[Scenario]:
    """Scenarios that resume ``after`` steps before the end, and whose states do not depend on a rank as buffers do."""
    given = {
        "model": models(buffers=False),
        "steps": saved + after,
        "reads": (),
        "resumes": (saved,),
        "short_steps": (),
        "loads_into": _INTO,
    }
    return scenarios(world=2, accumulation=1, **given | fixed)


def _follows(trials: Trials, command: ReplayCommand) -> None:
    """Demand that each step of the run that goes on is right for the state before it."""
    found = trials.runner.first_that_does_not_follow(command)
    if found is not None:
        raise disagreement(found, command)


def _follows_after_load(trials: Trials, drawn_one: tuple[Scenario, tuple[int, int]], *fixed: str) -> None:
    """Demand it after a load by other ranks.

    An engine without a promise of bits may divide each loss by the micro-steps, which is exact for some worlds alone.
    """
    scenario, worlds = drawn_one
    command = _command(trials, scenario, worlds, *fixed, leaves=leaves_of(*worlds), each_step=True)
    assume(trials.subject.promises_bits or worlds in EXACT_WORLD_PAIRS)
    _follows(trials, command)


#: The client's events after a load: in the first step, which it may begin by a reading, or in the second one.
_EVENTS: dict[str, Any] = {
    "reads": after_loads((2,)),
    "edits": among("edits", (), (2,), (3,)),
    "gradient_edits": among("gradient_edits", (), (3,), (2,)),
    "frozen_steps": among("frozen_steps", (), (3,), (2,)),
    "short_steps": among("short_steps", (), ((2, 1),), ((3, 1),)),
}


@drawn(
    st.tuples(
        _resuming(
            saved=2,
            after=2,
            loss_scale=STATIC | DYNAMIC,
            loads=among("load part", "all", "model", "without_optimizer"),
            **_EVENTS,
        ),
        _OF_SEVERAL_LEAVES,
    ),
    share=0.2,
)
def test_each_step_follows_after_a_load(trials: Trials, scenario: tuple[Scenario, tuple[int, int]]) -> None:
    """Losses, gradients, loss scale, norm and update of each step after the load are right for the state before the
    save, bit for bit or within a derived bound; so no state, step count or loss scale is lost, in any precision. So is
    a step after a load of a part. The engine that loads has other buckets, and another clipping or stage if its
    subject says that it may. After the load the client reads states, evaluates, edits, freezes and ends steps early."""
    _follows_after_load(trials, scenario)


@drawn(
    st.tuples(
        _resuming(
            saved=2,
            loads_into="trained",
            optimizer=optimizers(
                name=among("load rule", "adam", "adamw", "adagrad"),
                betas=among("betas", (0.9, 0.999), (0.5, 0.75)),
                lr_decay=0.5,
            ),
            frozen_steps=among("load rests", (), (0,), (1,)),
            poison=(),
        ),
        _OF_SEVERAL_LEAVES,
    ),
    share=0.1,
)
def test_step_counts_follow_after_a_load(trials: Trials, scenario: tuple[Scenario, tuple[int, int]]) -> None:
    """So is each update of a rule that reads step counts if the engine that loads has taken fewer steps than the saved
    one, and if the saved counts of neighbours differ."""
    _follows_after_load(trials, scenario, "loads_into", "frozen_steps")


@drawn(
    st.tuples(
        _resuming(
            saved=2,
            after=2,
            resumes=(2, 3),
            dtype=among("load dtype", "fp16", "fp32", "bf16"),
            loss_scale=STATIC,
            optimizer=optimizers(name=among("load rule", "adamw", "sgd", "adagrad", "lion"), momentum=0.9),
            poison=(),
        ),
        _OF_SEVERAL_LEAVES,
    ),
    share=0.1,
)
def test_each_step_follows_after_two_loads(trials: Trials, scenario: tuple[Scenario, tuple[int, int]]) -> None:
    """So does each step if what has come of the loaded state is saved, and loaded again by as many ranks. In fp16 the
    engines that load have another static loss scale than the one that saved first."""
    _follows_after_load(trials, scenario, "loss_scale", "optimizer")


@drawn(
    st.tuples(
        of_a_scaler(
            model=models(buffers=False, dropout=0.0),
            world=2,
            accumulation=1,
            short_steps=(),
            loads_into=_INTO,
        ).map(lambda one: one.but(resumes=one.resumes[-1:])),
        _OF_SEVERAL_LEAVES,
    ),
    share=0.1,
)
def test_a_dynamic_loss_scale_follows_after_a_load(trials: Trials, scenario: tuple[Scenario, tuple[int, int]]) -> None:
    """So is each decision of a dynamic loss scale, if the overflows and good steps that the engine counted before the
    save decide when it moves after the load."""
    _follows_after_load(trials, scenario, "loss_scale")


@drawn(
    st.tuples(
        _resuming(saved=2, dtype="fp16", loss_scale=STATIC),
        among("load static", 4.0, 1024.0),
        among("load clip", 0.0, 0.05),
    ),
    share=0.1,
)
def test_settings_are_those_of_the_engine_that_loads(trials: Trials, scenario: tuple[Scenario, float, float]) -> None:
    """If the client builds the engine that loads with another static loss scale or another clipping, its steps follow
    with these, and not with those of the engine that saved; unless its subject says that a load takes these."""
    trials.skip_unless_it_saves()
    one, static, clip = scenario
    one = trials.nearest(one, "resumes", "clip")
    scale = LossScale(static=static) if one.dtype == "fp16" else one.loss_scale
    other = one.but(loss_scale=scale, clip=clip) if trials.subject.keeps_settings else one
    assume(trials.offers(other))
    _follows(trials, ReplayCommand(other.but(resumes=()), trials.name, saved_by=_before_load(one), each_step=True))


@drawn(
    st.tuples(
        _resuming(
            model=models(buffers=False, **USED_ONCE),  # a second use is a term of its own
            dtype="fp32",
            clip=0.0,
            poison=(),
            communication_dtype=None,
            accumulator_dtype=None,
        ),
        _OF_TWO_LEAVES,
    ),
    share=0.2,
)
def test_two_leaves_keep_their_bits(trials: Trials, scenario: tuple[Scenario, tuple[int, int]]) -> None:
    """A resumed run has the bits of one with its number of ranks from the beginning, if a step has two leaves: the sum
    of two gradients has one value in every order."""
    _demand_bits(trials, _command(trials, *scenario, leaves=2, parts=in_order(_VALUES), zeros_alike=True))


@drawn(
    st.tuples(
        _resuming(
            model=models(**SMALL_DYADIC),
            dtype="fp32",
            data="dyadic",
            autocast=False,
            micro_batch=1,
            clip=0.0,
            poison=(),
            optimizer=optimizers(
                name="sgd",
                lr=2.0**-2,
                weight_decay=0.0,
                momentum=among("momentum", 0.5),
                second_group=False,
                third_group=False,
            ),
            communication_dtype=None,
            accumulator_dtype=None,
        ),
        _OF_SEVERAL_LEAVES,
    ),
    share=0.2,
)
def test_exact_sums_keep_their_bits(trials: Trials, scenario: tuple[Scenario, tuple[int, int]]) -> None:
    """So has one with more leaves if every sum is exact."""
    drawn_at, worlds = scenario
    kept = "name", "communication_dtype"
    compared: dict[str, Any] = {"parts": in_order(_VALUES), "zeros_alike": True}
    command = _command(trials, drawn_at, worlds, *kept, leaves=leaves_of(*worlds), **compared)
    policies = trials.subject.policies
    expected = canonical(command.scenario, frozenset(["gradients", "parameters"]), policies=policies)
    assume(is_exact(expected, exact(command.scenario, policies)))
    _demand_bits(trials, command)


def _command(
    trials: Trials, scenario: Scenario, worlds: Sequence[int], *fixed: str, leaves: int, **compared: Any
) -> ReplayCommand:
    """The comparison of a run that one number of ranks begins and another one ends, or the same one if the engine
    demands it; drop the draw if the engine refuses one of them, or if a known finding describes it."""
    before, after = worlds if trials.subject.resumes_at_any_world else (worlds[0], worlds[0])
    kept = ("resumes", "loads", "dtype", "clip", "poison", "data", "world", "accumulation", *fixed)
    drawn_at = at_offered_stage(trials.subject, scenario, _PLAIN)
    if drawn_at.loads != "all":  # an engine that has trained keeps what such a load leaves out
        part = drawn_at.loads if trials.subject.loads_parts else "all"
        drawn_at = drawn_at.but(loads=part, loads_into="new")
    near = trials.nearest(_on(drawn_at, before, leaves), *kept)
    other = _elsewhere(trials, _on(near, after, leaves)) if "each_step" in compared else _on(near, after, leaves)
    assume(trials.offers(other))
    resumes = other.resumes if other.loads_part else other.resumes[1:]
    return ReplayCommand(other.but(resumes=resumes), trials.name, saved_by=_before_load(near), **compared)


def _elsewhere(trials: Trials, scenario: Scenario) -> Scenario:
    """With other buckets, and if the engine promises that, with another clipping and static loss scale, and in half of
    the Scenarios at the next stage."""
    found = scenario.but(reduce_bucket=max(1, scenario.reduce_bucket // 3), overlap=not scenario.overlap)
    if trials.subject.keeps_settings and scenario.clip:
        found = found.but(clip=0.05 if scenario.clip == 8.0 else 8.0)
    if trials.subject.keeps_settings and scenario.dtype == "fp16" and (static := scenario.loss_scale.static):
        found = found.but(loss_scale=LossScale(static=8.0 if static == 1024.0 else 1024.0))
    stages = offered_stages(trials.subject, _PLAIN) if trials.subject.loads_other_stages else ()
    if scenario.seed % 2 and found.stage in stages:
        found = found.but(stage=stages[(stages.index(found.stage) + 1) % len(stages)])
    alternatives = found, found.but(stage=scenario.stage), scenario
    return next((each for each in alternatives if trials.subject.not_offered(each) is None), scenario)


def _before_load(scenario: Scenario) -> Scenario:
    """The run that saves: the steps before the load, with their events."""
    saved = scenario.resumes[0]
    kept: dict[str, Any] = {
        name: tuple(each for each in getattr(scenario, name) if each[0] < saved) for name in ("poison", "short_steps")
    }
    kept |= {
        name: tuple(each for each in getattr(scenario, name) if each < saved)
        for name in ("edits", "gradient_edits", "frozen_steps")
    }
    reads = tuple(read for read in scenario.reads if read.step < saved)
    return scenario.but(resumes=(), steps=saved, reads=reads, loads="all", **kept)


def _on(scenario: Scenario, world: int, leaves: int) -> Scenario:
    return scenario.but(world=world, accumulation=leaves // world)


def _demand_bits(trials: Trials, command: ReplayCommand) -> None:
    found = trials.runner.difference(command, Reading(frozenset(command.parts), ALL))
    if found is not None:
        raise disagreement(found, command)
