"""Bytes that no ledger counts: memory within an update or an evaluation, undeclared tensors, traffic of building and
saving, files, and all that is left of a closed engine. The bounds hold for every engine."""

from __future__ import annotations

import pytest

from zerobench.bench.ledger import COUNTED
from zerobench.model_specs import Gpt, Odd
from zerobench.scenario import Dtype, LossScale, Read, Scenario
from zerobench.suites.accounting import calls, costs
from zerobench.suites.accounting.forwards import forward
from zerobench.suites.accounting.ledger import judge
from zerobench.suites.support.offered import nearest
from zerobench.suites.support.trials import Trials

pytestmark = pytest.mark.ci

#: Of its blocks ten are less than a third.
_DEEP = Scenario(
    model=Gpt(vocab=64, context=16, width=32, layers=32, heads=2),
    steps=2,
    chunk=32,
    reduce_bucket=13_000,
    prefetch_bucket=0,
    micro_batch=1,
)
#: Its last block, which is half of it, is frozen.
_FROZEN = Odd(width=64, hidden=(64, 64, 256), frozen=True)
#: The client sets each second parameter, the matrices in even steps: in the first edit, and in the last.
_EDITS = (2, 3, 4)
#: Steps after which the last census is taken, and an evaluation after the last of them.
_CENSUS = COUNTED[-1]
_EVALUATED_LAST = (Read("evaluation", _CENSUS - 1),)
#: Between the two micro-steps of the second step.
_WITHIN_A_STEP = Read("evaluation", 1, 1), Read("optimizer_state", 1, 1)
_SMALL = Scenario(model=Gpt(vocab=64, context=16, width=64, layers=2, heads=2), chunk=64, micro_batch=1)
_EVENTFUL = _SMALL.but(
    steps=8,
    clip=0.01,  # less than the norm of each step
    reduce_bucket=13_000,
    accumulation=2,
    short_steps=((2, 1),),
    edits=_EDITS,
    gradient_edits=_EDITS,
    forwards="two",
    autocast=True,
    resumes=(6,),
    loads_into="same",
    frozen_steps=(7,),  # tensors are counted after this one
)
#: The last step is skipped, and files are counted after it.
_SKIPPING = _SMALL.but(
    steps=3,
    accumulation=2,
    short_steps=((0, 1),),
    edits=(1,),
    gradient_edits=(1,),
    reads=(Read("gradients", 1, 2), Read("optimizer_state", 1, 1), Read("evaluation", 1, 1), Read("evaluation", 2, 2)),
    poison=((2, 0),),
)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_update_holds_its_shard(trials: Trials, stage: int) -> None:
    """If the stage shards optimizer states, an update adds at most two copies of its shard, a flat gradient and the
    optimizer's temporary one, and ten blocks; at stage 1, which does not shard gradients, a flat copy of all of them,
    too."""
    judge(trials, _DEEP.but(stage=stage, world=4), costs.update, "dtype")


@pytest.mark.parametrize("stage", [2, 3])
def test_an_update_in_16_bits_holds_its_shard(trials: Trials, stage: int) -> None:
    """So it does in 16 bits if it clips, and makes fp32 of its part of the gradients alone."""
    judge(trials, _DEEP.but(stage=stage, world=4, dtype="bf16", clip=1.0), costs.update, "dtype", "clip")


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", range(4))
def test_an_update_copies_no_states(reference: Trials, stage: int, dtype: Dtype) -> None:
    """An update of the reference engine adds at most ten blocks of 32, whether it is applied or, in fp16, skipped: it
    copies neither gradients nor states."""
    scenario = _DEEP.but(stage=stage, world=4, dtype=dtype, clip=1.0)
    judge(reference, scenario.but(poison=((1, 0),)) if dtype == "fp16" else scenario, costs.updating, "dtype")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
def test_an_evaluation_holds_few_blocks(trials: Trials, stage: int, dtype: Dtype) -> None:
    """An evaluation adds at most ten blocks of 32: each rank has all parameters, or gathers few at a time."""
    judge(trials, _DEEP.but(stage=stage, dtype=dtype), costs.evaluation, "dtype")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
def test_a_forward_holds_few_blocks(trials: Trials, stage: int, dtype: Dtype) -> None:
    """The forward of a micro-step adds at most ten blocks of 32 to what it adds without an engine."""
    judge(trials, _DEEP.but(stage=stage, dtype=dtype, accumulation=2), forward, "dtype")


@pytest.mark.parametrize("stage", [0, 3])
def test_building_holds_few_blocks(reference: Trials, stage: int) -> None:
    """While it is built, the reference engine adds at most its states and ten blocks of 32."""
    judge(reference, _DEEP.but(stage=stage, world=4), costs.within_building)


def test_calls_between_steps_write_nothing(trials: Trials) -> None:
    """If all states are in files, an evaluation, readings and an update that is skipped write none of them."""
    scenario = _SMALL.but(stage=3, world=1, steps=2, offload_optimizer="nvme", offload_param="nvme")
    skipping = scenario.but(dtype="fp16", loss_scale=LossScale(static=1.0), poison=((1, 0),))
    judge(trials, _first_offered(trials, skipping, scenario), costs.written, "offload_optimizer", "offload_param")


@pytest.mark.parametrize("stage", range(4))
def test_a_save_and_a_load_hold_little(reference: Trials, stage: int) -> None:
    """A save of the reference engine adds at most the rank's part of the file and ten blocks; a load the states that
    the rank has, and ten blocks, and it reads twice as much at most: files have whole blocks. A load of the model alone
    has the masters alone, and reads no other state."""
    scenario = _DEEP.but(stage=stage, world=4)
    for each in (costs.saving, costs.loading, costs.reading):
        judge(reference, scenario, each)
    for each in (costs.loading, costs.reading):
        judge(reference, scenario.but(resumes=(1,), loads="model"), each, "loads")


@pytest.mark.parametrize("stage", [1, 3])
def test_an_edit_holds_few_blocks(reference: Trials, stage: int) -> None:
    """If the client sets every second parameter, or zeroes their gradients, the reference engine adds at most ten
    blocks of 32."""
    judge(reference, _DEEP.but(stage=stage), costs.editing)
    judge(reference, _DEEP.but(stage=stage), costs.editing_gradients)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_reading_holds_what_it_returns(reference: Trials, stage: int) -> None:
    """A reading of the reference engine adds at most what it returns, or the model twice, and ten blocks of 32."""
    judge(reference, _DEEP.but(stage=stage), costs.read_values)


@pytest.mark.parametrize("stage", range(4))
def test_a_step_holds_nothing_of_the_calls_before(trials: Trials, stage: int) -> None:
    """After an evaluation, readings, a save, a load and an edit, and an evaluation and a reading between its
    micro-steps, those of them that the engine offers, the second micro-step and the update hold at most ten blocks more
    than without: what a call keeps is gone when a micro-step is under way."""
    plain = _DEEP.but(stage=stage, accumulation=2)
    reading = _first_offered(trials, plain.but(reads=_WITHIN_A_STEP), plain.but(reads=_WITHIN_A_STEP[:1]), plain)
    loading = reading.but(resumes=(1,), loads_into="same")
    judge(trials, _first_offered(trials, loading, reading), costs.kept_in_step)


@pytest.mark.parametrize("stage", range(4))
def test_an_update_holds_nothing_of_a_reading(trials: Trials, stage: int) -> None:
    """If the client has read all optimizer states and gradients, and edited some gradients if the engine offers it, the
    update holds at most ten blocks more than without; so does an engine that reads many blocks at once, and keeps them
    for the next reading. At each second stage the states are in host memory, if the engine offers it."""
    scenario = _DEEP.but(stage=stage, prefetch_bucket=50_000_000, clip=1.0)
    offloaded = scenario.but(offload_optimizer="cpu")
    chosen = _first_offered(trials, offloaded, scenario) if stage % 2 else scenario
    judge(trials, chosen, costs.kept_in_update, "clip", "offload_optimizer")


@pytest.mark.parametrize("stage", range(4))
def test_little_is_undeclared(trials: Trials, stage: int) -> None:
    """Between steps the living tensors that the engine does not declare take less than half a shard; also after the
    client has set parameters. So it is in 16 bits after an edit, and after a step that overflows, in an engine that has
    loaded the model alone, if the engine offers them; and on three ranks if some parameters are frozen, at stage 3
    after an evaluation. If the engine promises the contract's bits, it has states in host memory at each second stage,
    and some parameters are frozen over a load."""
    edited = _DEEP.but(stage=stage, edits=_EDITS)
    offloaded = edited.but(accumulation=2, offload_optimizer="cpu", offload_param="cpu" if stage == 3 else "none")
    forms = [offloaded, edited] if stage % 2 and trials.subject.promises_bits else [edited]
    chosen = _first_offered(trials, *forms, edited.but(edits=()))
    judge(trials, chosen, costs.undeclared, "offload_optimizer", "offload_param")
    narrow = _in_16_bits(trials, stage)
    if trials.offers(narrow):
        judge(trials, narrow, costs.undeclared, "dtype")
    frozen = Scenario(model=_FROZEN, world=3, steps=_CENSUS, chunk=32, stage=stage, reduce_bucket=5_000)
    frozen = frozen.but(reads=_EVALUATED_LAST) if stage == 3 else frozen  # below, parameters may stay whole
    loaded = frozen.but(resumes=(1,), loads_into="same")
    loads = trials.subject.promises_bits and trials.offers(loaded)
    judge(trials, loaded if loads else frozen, costs.undeclared)


def _in_16_bits(trials: Trials, stage: int) -> Scenario:
    """In fp16 if the engine skips steps there, else in bf16; with a load of the model alone and an edit if it offers
    them."""
    bf16 = _SMALL.but(stage=stage, world=2, steps=_CENSUS, dtype="bf16", reduce_bucket=13_000)
    fp16 = bf16.but(dtype="fp16", loss_scale=LossScale(static=1.0), poison=((_CENSUS - 1, 0),))
    found = _first_offered(trials, fp16, bf16)
    for more in ({"resumes": (4,), "loads": "model"}, {"edits": (6,)}):
        found = _first_offered(trials, found.but(**more), found)
    return found


@pytest.mark.parametrize("stage", range(4))
def test_events_leave_little(trials: Trials, stage: int) -> None:
    """So it is after steps that clip, a short step, gradients that the client has edited, two forwards of a micro-step
    under autocast, a load into the engine that has saved, and a step in which a block rests; those of them that the
    engine offers."""
    found = nearest(trials.subject, _EVENTFUL.but(stage=stage), ("stage",))
    if isinstance(found, str):
        pytest.skip(found)
    judge(trials, found, costs.undeclared)


@pytest.mark.parametrize("stage", range(4))
def test_building_and_saving_receive_little(trials: Trials, stage: int) -> None:
    """An engine that is built receives at most the model twice. One that saves receives at most an all-reduce of each
    state; if it saves the same state again, the files take no more bytes."""
    judge(trials, _SMALL.but(stage=stage), costs.building)


@pytest.mark.parametrize("stage", range(4))
def test_loads_and_edits_receive_little(trials: Trials, stage: int) -> None:
    """An engine that loads receives each state once at most, because the files have it; the model once if the client
    sets parameters, of which every rank has the values; the gradients once if the client zeroes some; and no state
    while it is closed. One that loads the model alone receives it once at most. So does one that evaluates, in the
    dtype of the forward: on two ranks this is twice what the other rank has."""
    judge(trials, _SMALL.but(stage=stage), calls.changing)
    model_alone = _SMALL.but(stage=stage, resumes=(1,), loads="model")
    narrow = _first_offered(trials, model_alone.but(dtype="bf16"), model_alone)
    if trials.offers(narrow):
        judge(trials, narrow, calls.changing, "dtype")


@pytest.mark.parametrize("stage", range(4))
def test_a_load_of_other_ranks_receives_little(trials: Trials, stage: int) -> None:
    """So it does if it loads what another number of ranks has saved. An engine that promises the contract's bits loads
    what another stage has saved, and adds the states that a rank has, and ten blocks at most."""
    if not trials.subject.resumes_at_any_world:
        pytest.skip(f"{trials.name} does not load a checkpoint of another number of ranks")
    judge(trials, _DEEP.but(stage=stage), costs.loading_elsewhere)


@pytest.mark.parametrize("stage", range(4))
def test_a_saved_state_has_each_state_once(reference: Trials, stage: int) -> None:
    """The files of a saved state of the reference engine have each state once, whatever the number of ranks, and no
    rounded copy of the masters in 16 bits, and frozen parameters once. Each rank of torch's DDP may save its own."""
    judge(reference, _SMALL.but(stage=stage, world=4), costs.saved)
    judge(reference, _DEEP.but(stage=stage, world=4, dtype="bf16"), costs.saved, "dtype")
    judge(reference, Scenario(model=_FROZEN, world=4, chunk=32, stage=stage), costs.saved)


@pytest.mark.parametrize("stage", range(4))
def test_nothing_is_left_of_a_closed_engine(trials: Trials, stage: int) -> None:
    """After four engines, of which each has saved, and loaded everything or a part, and is closed before the next is
    built, a process has no more tensors, open descriptors, threads and files than after the first. If states are in
    files, the four read ahead, write behind, or both, or neither."""
    judge(trials, _in_files(trials, stage), costs.closed)


def _in_files(trials: Trials, stage: int) -> Scenario:
    """With all states in files that may be there at this stage, or with as many as the engine offers."""
    plain = _SMALL.but(stage=stage, steps=1)
    one = plain.but(offload_optimizer="nvme", offload_param="nvme" if stage == 3 else "none")
    return _first_offered(trials, one, one.but(offload_param="none"), plain)


def _first_offered(trials: Trials, *scenarios: Scenario) -> Scenario:
    """The first one that the engine offers; the last one if it offers none."""
    return next((each for each in scenarios if trials.offers(each)), scenarios[-1])


@pytest.mark.parametrize("stage", range(4))
def test_nothing_is_left_of_forwards_that_raise(trials: Trials, stage: int) -> None:
    """After two forwards that raise in code of the client, and a step, a process has no more tensors, open descriptors
    and threads than after the step before; also if the step has several micro-steps."""
    if not trials.subject.survives_failures:
        pytest.skip(f"{trials.name} does not promise that it goes on after an error of the client's code")
    judge(trials, _SMALL.but(stage=stage, steps=5, accumulation=2), costs.failures)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_files_have_what_is_declared(trials: Trials, stage: int) -> None:
    """The files of all ranks together have the bytes that the engine declares, and a tenth more at most; also after a
    short step, readings, edits, a skipped step and loads, those of them that the engine offers."""
    scenario = _SKIPPING.but(stage=stage, offload_optimizer="nvme", offload_param="nvme" if stage == 3 else "none")
    if not trials.subject.promises_bits:  # it may look for overflows in fp16 alone
        scenario = scenario.but(dtype="fp16", loss_scale=LossScale(static=1.0))
    found = nearest(trials.subject, scenario, ("stage", "offload_optimizer"))
    if isinstance(found, str):
        pytest.skip(found)
    judge(trials, found, costs.files, "offload_optimizer")
