"""Within a step: norms and clipping, loss scale and overflow, peculiar parameters, padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume

from zerobench.driver import ALL
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import Difference
from zerobench.judge.parts import Part
from zerobench.scenario import LossScale, Read, Readable, Scenario
from zerobench.suites.support.covering import PECULIAR, among
from zerobench.suites.support.offered import at_offered_stage
from zerobench.suites.support.strategies import (
    DYADIC_MODELS,
    OFTEN_SCHEDULED,
    STAGES,
    drawn,
    drawn_at_each_stage,
    models,
    scenarios,
    skipping,
)
from zerobench.suites.support.trials import Trials


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, clip=st.sampled_from([1e-3, 0.05, 0.5])), share=0.25)
def test_clipping(bits: Trials, scenario: Scenario) -> None:
    """The norm is the oracle's, the same bits on every rank, and the clipped update follows from it."""
    assume(bits.offers(scenario))
    trajectories, expected = bits.run_beside_canonical(scenario, ("norm", "parameters"))
    bits.agree(trajectories, expected, ("norm", "parameters"))


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(
            stage=stage,
            model=DYADIC_MODELS,
            dtype="fp16",
            data="dyadic",
            autocast=False,
            steps=1,
            micro_batch=2,
            communication_dtype=None,
            accumulator_dtype=None,
            loss_scale=LossScale(static=8.0),
            poison=(),
        ),
        st.sampled_from([0.25, 2.0, 8.0]),
    ),
    share=0.2,
)
def test_static_loss_scale_changes_nothing(bits: Trials, scenario: tuple[Scenario, float]) -> None:
    """A static loss scale that is a power of two changes no bit if fp16 neither over- nor underflows, and on dyadic
    data it does not."""
    one, factor = scenario
    other = one.but(loss_scale=LossScale(static=8.0 * factor))
    assume(bits.offers(one) and bits.offers(other))
    parts: tuple[Part, ...] = ("losses", "norm", "skipped", "gradients", "parameters", "optimizer_state")
    base, scaled = bits.run(one, parts), bits.run(other, parts)
    assume(not any(run[0].steps[0].skipped for run in (base, scaled)))
    bits.agree(scaled, base, parts)


@drawn_at_each_stage(
    lambda stage: st.tuples(
        scenarios(
            stage=stage,
            dtype="fp16",
            steps=5,
            model=models(dropout=0.0, width=st.sampled_from([1, 3, 5, 8])),
            lr_factors=OFTEN_SCHEDULED,  # a schedule of the engine rests in skipped steps
            loss_scale=st.builds(
                LossScale,
                initial_power=st.sampled_from([0, 3, 8, 12, 14, 16, 18]),  # from 12 on some ranks overflow alone
                window=st.integers(1, 3),
                hysteresis=st.integers(1, 3),
                consecutive_hysteresis=st.booleans(),
                minimum=st.sampled_from([0.25, 1.0, 2.0]),
            ),
        ),
        st.sets(st.integers(0, 4), max_size=4),
        st.integers(0, 11),
        among("after_bad_steps", "evaluation", "optimizer_state", "none"),
    ),
    share=0.4,
)
def test_dynamic_loss_scale(bits: Trials, scenario: tuple[Scenario, set[int], int, Readable | Literal["none"]]) -> None:
    """Overflow on any one leaf skips the step on all ranks, and the scale moves as DeepSpeed's state machine says, also
    if an evaluation or a reading comes right after a skipped step."""
    one, bad, leaf, after = scenario
    reads = () if after == "none" else tuple(Read(after, step, -1) for step in sorted(bad))
    poison = tuple((step, leaf % one.leaves_of(step)) for step in sorted(bad))
    one = one.but(poison=poison, reads=one.reads + reads)
    assume(bits.offers(one))
    trajectories, expected = bits.run_beside_canonical(one)
    bits.agree(trajectories, expected)


@drawn_at_each_stage(
    lambda stage: st.tuples(scenarios(stage=stage, steps=3), st.integers(0, 2), st.integers(0, 11)), share=0.25
)
def test_overflow_moves_nothing(bits: Trials, scenario: tuple[Scenario, int, int]) -> None:
    """If a gradient is not finite on any one rank, every rank skips, and no state moves."""
    one, step, leaf = scenario
    one = skipping(one, step, leaf)
    assume(bits.offers(one))
    for trajectory in bits.run(one, ("parameters", "model_parameters", "optimizer_state"), keep=ALL):
        here = trajectory.steps[step]
        if not here.skipped:
            which = bits.name, "the contract", one, trajectory.rank, step
            found = Difference(*which, "skipped", "", "False", "True")
            raise bits.wrong(found, ReplayCommand(one, bits.name))
        if step:
            earlier = trajectory.steps[:step]
            moved, still = (replace(trajectory, steps=[*earlier, last]) for last in (here, earlier[-1]))
            bits.agree_in_one_run(moved, still, ("parameters", "model_parameters", "optimizer_state"))


@pytest.mark.parametrize("peculiarity", PECULIAR)
def test_peculiar_parameters(bits: Trials, peculiarity: str) -> None:
    """Frozen, unused, used on one rank only, tied, reused, tiny, empty, 0-dimensional: each alone, at every stage."""

    @drawn(scenarios(model=models(**{peculiarity: True})), share=0.15)
    def check(scenario: Scenario) -> None:
        assume(bits.offers(scenario))
        trajectories, expected = bits.run_beside_canonical(scenario)
        bits.agree(trajectories, expected)

    check()


@drawn(scenarios(model=models(tiny=True, scalar=True)), share=0.3)
def test_padding_leaks_nowhere(reference: Trials, scenario: Scenario) -> None:
    """Padding filled with NaN, in every state and every buffer, reaches no result."""
    name = "zerobench.suites.support.padding:NanPadding"
    reference.agree(reference.run(scenario, subject=name), reference.run(scenario))


# a scheduler of the engine keeps a rate of zero if the first step is skipped
@drawn(scenarios(model=models(), stage=STAGES, steps=2, clip=0.0, scheduled_by="client", edits=()), share=0.25)
def test_parameters_move(trials: Trials, scenario: Scenario) -> None:
    """A step that is not skipped changes parameters: no engine passes by doing nothing."""
    scenario = trials.nearest(at_offered_stage(trials.subject, scenario), "clip")
    first, last = trials.run(scenario, ("gradients", "parameters"), keep=ALL)[0].steps
    assume(not last.skipped and any(bool((g != 0).any()) for g in last.gradients.values()))
    if all(torch.equal(value, last.parameters[name]) for name, value in first.parameters.items()):
        found = Difference(trials.name, "the contract", scenario, 0, 1, "parameters", "", "as before the step", "moved")
        raise trials.wrong(found, ReplayCommand(scenario, trials.name))
