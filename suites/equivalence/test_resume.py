"""A resumed run equals one that was never interrupted."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume

from zerobench.bench.runner import Reading, in_order
from zerobench.driver import ALL, Keep
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import same_bits
from zerobench.judge.judgement import disagreement
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.model_specs import Odd
from zerobench.scenario import LoadsInto, LossScale, OffloadTarget, Scenario
from zerobench.suites.support import loads
from zerobench.suites.support.client import Changed
from zerobench.suites.support.covering import among
from zerobench.suites.support.offered import at_offered_stage
from zerobench.suites.support.rerun import error_of_test
from zerobench.suites.support.scalers import of_a_scaler
from zerobench.suites.support.sizes import WORLD_PAIRS, chunks, leaves_of, settings_of
from zerobench.suites.support.strategies import (
    DYNAMIC,
    STAGES,
    STATIC,
    after_loads,
    drawn,
    drawn_at_each_stage,
    models,
    optimizers,
    scenarios,
)
from zerobench.suites.support.trials import Trials

#: Buffers that a checkpoint has, or that it leaves out.
_BUFFERS: dict[str, Any] = {
    "buffers": among("buffers", False, True),
    "persistent": among("load persistent", True, False),
}
#: A save before the second step, before the third one, which may follow a skipped step, or before both.
_RESUMES = st.sampled_from([(1,), (2,), (1, 2)])
#: An engine that has just been built loads what was saved, or one whose states it must replace.
_INTO = among("load into", "new", "trained", "same")
#: A schedule shows once it has gone on after a load.
_RATES = among("lr_factors", (0.25, 2.0, 0.5), ())


@st.composite
def _resting(draw: st.DrawFn, /, **fixed: Any) -> Odd:
    """Models of which most have a block that rests, in whole steps or micro-steps or on some ranks, around a load."""
    routes = draw(among("load routes", "any", "steps", "micro_steps", "ranks"))
    return draw(models(**({} if routes == "any" else {"routed": True, "routes": routes}) | fixed))


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage, model=_resting(), steps=3, resumes=_RESUMES, loads_into=_INTO, lr_factors=_RATES
    ),
    share=0.125,
    least=0.0,
)
def test_resume_equals_the_canonical_trainer(bits: Trials, scenario: Scenario) -> None:
    """If an engine, of a model with other values or with other steps behind it, loads the saved state, every number of
    the run is the canonical trainer's, bit for bit: losses, norms, decisions, loss scales, parameters, masters and
    optimizer states."""
    bits.skip_unless_it_saves()
    trajectories, expected = bits.run_beside_canonical(bits.nearest(scenario, "resumes"))
    bits.agree(trajectories, expected)


@st.composite
def _of_step_counts(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """Scenarios in which the first block rests before a save, so that the saved step counts differ, of neighbours that
    an engine may step together. The engine that loads may have trained both alike, and the rule reads the counts."""
    resume = draw(st.integers(1, 2))
    given: dict[str, Any] = {
        "steps": resume + 2,
        "resumes": (resume,),
        "loads_into": among("load into", "trained", "same", "new"),
        "frozen_steps": tuple(range(draw(st.integers(0, resume - 1)), resume)),
        "optimizer": optimizers(
            name=among("load rule", "adam", "adamw", "adagrad"),
            betas=among("betas", (0.9, 0.999), (0.5, 0.75)),
            lr_decay=0.5,
        ),
    }
    return draw(scenarios(**given | fixed))


@drawn_at_each_stage(lambda stage: _of_step_counts(stage=stage), share=0.1, least=0.0)
def test_resume_of_step_counts(bits: Trials, scenario: Scenario) -> None:
    """So is every update if the saved step counts of neighbours differ, and those of the engine that loads do not."""
    bits.skip_unless_it_saves()
    trajectories, expected = bits.run_beside_canonical(bits.nearest(scenario, "resumes", "frozen_steps"))
    bits.agree(trajectories, expected)


#: A master that becomes a frozen parameter is rounded in 16 bits alone.
_DTYPES = "fp32", "bf16", "fp16"


@st.composite
def _of_a_part(draw: st.DrawFn, /, **fixed: Any) -> Scenario:
    """Scenarios in which a new engine loads a part of the state; parameters may be frozen in the saved or in the new
    engine alone, and an overflow before the save may have lowered the loss scale."""
    frozen = draw(among("load frozen", "all", "saved", "loaded"))
    model = _resting(**_BUFFERS) if frozen == "all" else _resting(frozen=True, **_BUFFERS)
    loads = among("load part", "without_optimizer", "model")
    lowered = {"dtype": "fp16", "loss_scale": LossScale(initial_power=6, hysteresis=1), "poison": ((0, 0),)}
    scale = lowered if draw(among("load scale", False, True, rare=True)) else {"dtype": among("load dtype", *_DTYPES)}
    given = {"model": model, "steps": 4, "resumes": _RESUMES, "loads": loads, "lr_factors": _RATES}
    return draw(scenarios(**given | scale | fixed)).but(frozen_in=frozen)


@drawn_at_each_stage(lambda stage: _of_a_part(stage=stage), share=0.15, least=0.0)
def test_load_of_a_part_equals_the_canonical_trainer(bits: Trials, scenario: Scenario) -> None:
    """If it loads everything but the optimizer's states, or the model alone, what it does not load is new, bit for bit:
    optimizer states, step counts, loss scale, hyperparameters, schedule and counters."""
    bits.skip_unless_it_saves()
    trajectories, expected = bits.run_beside_canonical(bits.nearest(scenario, "resumes", "loads"))
    bits.agree(trajectories, expected)


def _into(one: Scenario, into: LoadsInto) -> Scenario:
    """A trained engine keeps what a load leaves out, so a part of the state is for a new one."""
    found = one.but(loads_into=into)
    return one if found.keeps_unloaded else found


def _of_any_load(stage: st.SearchStrategy[int]) -> st.SearchStrategy[Scenario]:
    accumulation, loads = among("accumulation", 1, 2, 4), among("load part", "without_optimizer", "model", "all")
    given = {"steps": 3, "accumulation": accumulation, "resumes": _RESUMES, "loads": loads}
    return st.builds(_into, scenarios(stage=stage, model=models(**_BUFFERS), **given), _INTO)


@pytest.mark.ci
@drawn_at_each_stage(_of_any_load, share=0.4, of_bits=0.1)
def test_each_step_follows_over_any_load(trials: Trials, scenario: Scenario) -> None:
    """Losses, gradients, norm and update of each step are right for the state before it, over loads of everything, also
    into an engine that has trained, and of a part: bit for bit, or within a derived bound. The counters and the
    client's state are exact."""
    trials.skip_unless_it_saves()
    trials.follows(trials.nearest(scenario, "resumes", "loads", "accumulation"))


_FP16: dict[str, Any] = {"dtype": "fp16", "loss_scale": DYNAMIC, "steps": 5}


@drawn_at_each_stage(
    lambda stage: (
        of_a_scaler(stage=stage, loads_into=_INTO) | scenarios(stage=stage, **_FP16, resumes=_RESUMES, loads_into=_INTO)
    ),
    share=0.125,
    least=0.0,
)
def test_resume_of_a_dynamic_loss_scale(bits: Trials, scenario: Scenario) -> None:
    """So is every decision of a dynamic loss scale, if overflows and growth come before and after the resume."""
    bits.skip_unless_it_saves()
    trajectories, expected = bits.run_beside_canonical(bits.nearest(scenario, "resumes", "dtype", "loss_scale"))
    bits.agree(trajectories, expected)


@pytest.mark.ci
@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        steps=3,
        resumes=_RESUMES,
        loads_into=_INTO,
        world=among("world", 2, 1),
        reads=after_loads((1, 2)),
    ),
    share=0.1,
)
def test_resume_changes_nothing(trials: Trials, scenario: Scenario) -> None:
    """A resumed run has the bits of the uninterrupted one; on two ranks, where the sum of two gradients has one value
    in every order."""
    trials.skip_unless_it_saves()
    one = trials.nearest(scenario, "resumes", "loads")
    trials.agree(trials.run(one), trials.run(one.but(resumes=())), ALL_PARTS)


_PLACES: tuple[OffloadTarget, ...] = ("none", "cpu", "nvme")
#: The stage that saves and the one that loads, and so the places of their optimizer states: each change is covered.
_STAGE_PAIRS = among("load stages", *itertools.product(range(4), repeat=2))
_PLACE_PAIRS = among("load places", *itertools.product(_PLACES, repeat=2))


@st.composite
def _elsewhere(draw: st.DrawFn, /) -> tuple[Scenario, Scenario]:
    """A Scenario that is saved after its last step, and one of another stage or other settings that goes on."""
    saves, loads = draw(_STAGE_PAIRS)
    one = draw(scenarios(stage=saves, schedule="micro_step", steps=2, reads=()))
    place, then = draw(_PLACE_PAIRS)
    chunk = one.chunk if one.clip else draw(chunks(one.model))  # the norm alone depends on it
    other = one.but(stage=loads, steps=4, chunk=chunk, **draw(settings_of(one.model, one.world, chunk)))
    other = other.but(offload_optimizer=then, loads=draw(among("load part", "all", "model", "without_optimizer")))
    if other.loads == "all":
        return one.but(offload_optimizer=place), other.but(loads_into=draw(among("load into", "new", "trained")))
    return one.but(offload_optimizer=place), other.but(resumes=(one.steps,))


@drawn(_elsewhere(), share=0.4)
def test_resume_elsewhere(bits: Trials, scenario: tuple[Scenario, Scenario]) -> None:
    """If an engine of another stage, with other buckets and other offload, and without clipping of other chunks, loads
    the saved state, it goes on with the same bits, also if it has trained before. If a new engine loads a part of the
    state, they are those after such a load of what an engine of its own stage and settings has saved."""
    bits.skip_unless_it_saves()
    one, other = scenario
    assume(bits.offers(one))
    assume(bits.offers(other))
    _agree(bits, one, other, ALL_PARTS)


@drawn(
    st.tuples(
        scenarios(
            model=models(buffers=False),
            accumulator_dtype=None,
            schedule="micro_step",
            short_steps=(),
            poison=(),
            reads=(),
            loads=among("load part", "all", "model", "without_optimizer"),
            loads_into=among("load into", "new", "trained"),
        ),
        among("load worlds", *WORLD_PAIRS),
        STAGES,
    ),
    share=0.3,
)
def test_resume_at_another_world_size(bits: Trials, scenario: tuple[Scenario, tuple[int, int], int]) -> None:
    """If the product of ranks and micro-steps stays, another number of ranks goes on with the same bits. If a new
    engine loads a part of the state, they are those after such a load of what as many ranks have saved."""
    bits.skip_unless_it_saves()
    whole, (before, then), stage = scenario
    leaves = leaves_of(before, then)
    one = whole.but(world=before, accumulation=leaves // before, steps=2, loads="all")
    other = whole.but(world=then, accumulation=leaves // then, steps=4, stage=stage)
    if other.loads != "all":
        other = other.but(resumes=(one.steps,), loads_into="new")
    assume(bits.offers(one))
    assume(bits.offers(other))
    _agree(bits, one, other, ["norm", "gradients", "parameters", "optimizer_state"])


@drawn(
    st.tuples(
        scenarios(
            # on each rank the held-out batch takes the same path
            model=models(buffers=True, persistent=True, routed=False, stopped=False),
            steps=2,
            short_steps=(),
            edits=(),
            poison=(),
            reads=(),
            loads=among("load part", "all", "model", "without_optimizer"),
        ),
        among("load worlds", *WORLD_PAIRS),
        STAGES,
    ),
    share=0.1,
)
def test_buffers_at_another_world_size(trials: Trials, scenario: tuple[Scenario, tuple[int, int], int]) -> None:
    """On another number of ranks each takes the buffers of the rank of its number, modulo those that have saved. Of an
    engine without a promise of bits, one rank has saved, and each takes its buffers."""
    trials.skip_unless_it_saves()
    if not trials.subject.resumes_at_any_world:
        pytest.skip(f"{trials.name} does not resume on another number of ranks")
    drawn_one, (before, then), stage = scenario
    if trials.subject.promises_bits:
        one, other = drawn_one.but(world=before), drawn_one.but(world=then, stage=stage)
    else:
        drawn_one = at_offered_stage(trials.subject, drawn_one.but(world=1, resumes=(1,)))
        one = trials.nearest(drawn_one, "world", "resumes", "model", "loads")
        one, other = (one.but(world=each, resumes=()) for each in (1, max(before, then)))
    assume(trials.offers(one))
    assume(trials.offers(other))
    with tempfile.TemporaryDirectory() as directory:
        saved, got = (
            trials.ask(ReplayCommand(each, trials.name), task, Path(directory))
            for each, task in ((one, loads.evaluated_and_saved), (other, loads.loaded_and_evaluated))
        )
    for rank, loss in enumerate(got):
        if not same_bits(loss, saved[rank % one.world]):
            found = Changed(
                trials.name, other, rank, f"buffers of rank {rank % one.world}, by load", owner="a saved state"
            )
            raise error_of_test(found, one, trials.name)


#: A parameter's 600,000 elements are three blocks of a file. Of three ranks the second one begins to read in the middle
#: of a later block; of two it would begin with the second parameter.
_LARGE = Odd(width=100, hidden=(6000,), norm=False, activation="tanh")


@drawn(
    st.tuples(
        scenarios(
            model=_LARGE,
            steps=2,
            micro_batch=1,
            optimizer=optimizers(name=among("optimizer", "sgd", "adam"), second_group=False),
            loss_scale=STATIC,
            accumulator_dtype=None,
            schedule="micro_step",
            short_steps=(),
            poison=(),
            reads=(),
        ),
        among("load worlds", (1, 3), (2, 3)),
        st.sampled_from([1, 2, 3]),
    ),
    share=0.05,
)
def test_resume_of_several_blocks(bits: Trials, scenario: tuple[Scenario, tuple[int, int], int]) -> None:
    """So it does if a rank reads several blocks of a file, and begins in the middle of one."""
    bits.skip_unless_it_saves()
    whole, (before, then), stage = scenario
    leaves = before * then
    one = whole.but(world=before, accumulation=leaves // before, steps=1)
    other = whole.but(world=then, accumulation=leaves // then, stage=stage)
    assume(bits.offers(one))
    assume(bits.offers(other))
    _agree(bits, one, other, ["parameters", "optimizer_state"], keep=frozenset())


def _agree(trials: Trials, one: Scenario, other: Scenario, parts: Sequence[Part], keep: Keep = ALL) -> None:
    """Demand of a run that ``one`` begins and ``other`` ends the bits of ``other`` from the beginning."""
    command = ReplayCommand(other, trials.name, in_order(parts), saved_by=one)
    found = trials.runner.difference(command, Reading(frozenset(parts), keep))
    if found is not None:
        raise disagreement(found, command)
