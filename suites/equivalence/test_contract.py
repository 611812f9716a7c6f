"""One training trajectory, bit for bit, for every stage and all settings."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import assume

from zerobench.judge.parts import Part
from zerobench.model_specs import Odd
from zerobench.scenario import OffloadTarget, Scenario
from zerobench.suites.support.covering import among
from zerobench.suites.support.sizes import boundaries, settings_of
from zerobench.suites.support.strategies import drawn, drawn_at_each_stage, models, scenarios
from zerobench.suites.support.trials import Trials


@drawn_at_each_stage(lambda stage: scenarios(stage=stage), share=0.8)
def test_equals_the_canonical_trainer(bits: Trials, scenario: Scenario) -> None:
    """Reduced gradients, norms, losses and skipped steps of every step, and full parameters, masters and optimizer
    state after the last, are those of the canonical trainer, bit for bit, on every rank."""
    assume(bits.offers(scenario))
    trajectories, expected = bits.run_beside_canonical(scenario)
    bits.agree(trajectories, expected)


@drawn(scenarios(model=models(), steps=2), share=0.25)
def test_evaluation_sees_the_trained_values(bits: Trials, scenario: Scenario) -> None:
    """After training, an evaluation's loss on rank 0 is the canonical trainer's, bit for bit."""
    assume(bits.offers(scenario))
    trajectories, expected = bits.run_beside_canonical(scenario, ["evaluation"])
    bits.agree(trajectories, expected, ["evaluation"])


@drawn(scenarios(stage=0), share=0.3)
def test_stages_agree(bits: Trials, scenario: Scenario) -> None:
    """Stages 0, 1, 2 and 3 train the same model, bit for bit, under the same reduction schedule."""
    stages = [scenario.but(stage=stage, schedule="micro_step") for stage in range(4)]
    runs = [bits.run(each) for each in bits.offered(stages, "stage")]
    for run in runs[1:]:
        bits.agree(run, runs[0])


@drawn(scenarios(model=models(dropout=0.25, recompute=among("recompute", "reentrant", "non_reentrant"))), share=0.2)
def test_recomputation_and_dropout_agree_across_stages(bits: Trials, scenario: Scenario) -> None:
    """Activation checkpointing, in both modes, and dropout change nothing across stages."""
    stages = [scenario.but(stage=stage, schedule="micro_step") for stage in (0, 3)]
    one, other = (bits.run(each) for each in bits.offered(stages, "stage"))
    bits.agree(other, one)


def _and_settings(stage: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[Scenario, dict[str, object]]]:
    """A Scenario, and other settings for it."""
    one = scenarios(stage=stage)
    return one.flatmap(lambda one: st.tuples(st.just(one), settings_of(one.model, one.world, one.chunk)))


@drawn_at_each_stage(_and_settings, share=0.25)
def test_settings_change_nothing(bits: Trials, scenario: tuple[Scenario, dict[str, object]]) -> None:
    """Bucket sizes, prefetch, persistence, max-live, sub-group size and overlap do not change a bit."""
    one, changes = scenario
    other = one.but(**changes)
    assume(bits.offers(one))
    assume(bits.offers(other))
    bits.agree(bits.run(other), bits.run(one))


@drawn(
    scenarios(world=among("world", 2, 3, 4)).flatmap(lambda one: st.tuples(st.just(one), boundaries(one.model))),
    share=0.3,
)
def test_buckets_that_end_with_a_parameter(bits: Trials, scenario: tuple[Scenario, dict[str, int]]) -> None:
    """A bucket or a sub-group of exactly a parameter's size, one less or one more, gives the canonical trainer's
    bits."""
    one, sizes = scenario
    one = one.but(**sizes)
    assume(bits.offers(one))
    bits.agree(*bits.run_beside_canonical(one))


_LATE = "zerobench.suites.support.late:Late"


@drawn_at_each_stage(lambda stage: scenarios(stage=stage), share=0.15)
def test_lateness_changes_nothing(reference: Trials, scenario: Scenario) -> None:
    """Copies and collectives that end as late as they may, as they do on a GPU, change not a bit."""
    reference.agree(reference.run(scenario, subject=_LATE), reference.run(scenario))


@pytest.mark.parametrize("buffers", [3, 2])
def test_late_writes_of_an_edit(reference: Trials, buffers: int) -> None:
    """So it is in the forward after an edit in place, which reads ahead while writes of the edit are on their way from
    the buffers to files."""
    scenario = Scenario(
        model=Odd(width=8, hidden=(9, 9, 9)),
        world=2,
        stage=3,
        steps=3,
        edits=(1,),
        offload_optimizer="cpu",
        offload_param="nvme",
        buffer_count=buffers,
        buffer_size=4096,
        persistence=0,
        seed=3,  # an odd one: edits are in place
    )
    reference.agree(reference.run(scenario, subject=_LATE), reference.run(scenario))


@pytest.mark.ci
@pytest.mark.parametrize("offload", ["none", "cpu", "nvme"])
@pytest.mark.parametrize("seed", range(4))
def test_an_edit_reaches_every_store(bits: Trials, offload: OffloadTarget, seed: int) -> None:
    """If some shards are in files and others, by ``max_in_cpu``, in memory, what a client sets is in each of them, in
    the forward that follows too. By the seed it sets masters, or edits in place on all ranks or on the first alone; a
    save follows the second edit at once, while files may still be written, or replaces one from before it, or a load
    goes before it."""
    scenario = Scenario(
        model=Odd(width=8, hidden=(9, 9, 9)),
        world=2,
        stage=3,
        steps=3,
        chunk=32,
        edits=(1, 2),
        resumes=(2,),
        offload_optimizer=offload,
        offload_param="nvme",
        max_in_cpu=300,
        buffer_size=8192,
        pipeline_read=True,
        pipeline_write=True,
        seed=seed,
    )
    scenario = bits.nearest(scenario, "edits", "stage")
    bits.agree(*bits.run_beside_canonical(scenario))


@drawn(scenarios(model=models(buffers=False), accumulator_dtype=None), share=0.35)
def test_world_size_changes_nothing(bits: Trials, scenario: Scenario) -> None:
    """With gradients reduced at every micro-step, every world size that divides N * A gives the same bits."""
    whole = scenario.but(world=1, accumulation=4, schedule="micro_step", short_steps=(), poison=(), reads=())
    worlds = [whole.but(world=world, accumulation=4 // world) for world in (1, 2, 4)]
    parts: tuple[Part, ...] = ("norm", "gradients", "parameters", "optimizer_state")
    runs = [bits.run(each, parts) for each in bits.offered(worlds, "world")]
    for run in runs[1:]:
        bits.agree(run, runs[0], parts)


@drawn(scenarios(steps=2), share=0.25)
def test_ranks_hold_the_same_state(bits: Trials, scenario: Scenario) -> None:
    """All ranks hold identical gradients, norms and decisions in every step, and identical states after the last."""
    assume(bits.offers(scenario))
    first, *others = bits.run(scenario)
    for other in others:
        bits.agree_in_one_run(other, first, ("norm", "gradients", "parameters", "model_parameters", "optimizer_state"))
