"""Bytes that no ledger counts: memory within an update or an evaluation, undeclared tensors, traffic of building and
saving, files, and all that is left of a closed engine. The bounds hold for every engine."""

from __future__ import annotations

import pytest

from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.model_specs import Gpt
from zerobench.oracles.rules import state_keys
from zerobench.scenario import Scenario
from zerobench.suites.accounting import bounds, within
from zerobench.suites.accounting.ledger import demand, ledgers, skip_unless_offered
from zerobench.suites.support.client import offers_saving
from zerobench.suites.support.trials import Trials
from zerobench.workload import models

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
_SMALL = Scenario(model=Gpt(vocab=64, context=16, width=64, layers=2, heads=2), chunk=64, micro_batch=1)
#: Bytes of the messages in which ranks agree on a model and on the content of a checkpoint, by name and shape.
_AGREEMENT = 1 << 18
#: Whether each of the engines that follow each other in one process reads ahead and writes behind.
_PIPELINES = [(False, False), (True, False), (False, True), (True, True)]
_TIMES = len(_PIPELINES)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_update_holds_its_shard(trials: Trials, stage: int) -> None:
    """If the stage shards optimizer states, an update adds at most two copies of its shard, a flat gradient and the
    optimizer's temporary one, and ten blocks."""
    scenario = _DEEP.but(stage=stage, world=4)
    model = models.shapes(scenario)
    most = 2 * bounds.most_in_backward(scenario, model) - bounds.of_ten_blocks(model)
    _demand_within(trials, scenario, "update", most, "two copies of its shard, and ten blocks")


def test_an_evaluation_holds_few_blocks(trials: Trials) -> None:
    """If parameters are sharded, an evaluation adds at most ten blocks of 32."""
    most = bounds.of_ten_blocks(models.shapes(_DEEP))
    _demand_within(trials, _DEEP.but(stage=3), "evaluation", most, "ten blocks")


def _demand_within(trials: Trials, scenario: Scenario, call: within.Within, most: int, bound: str) -> None:
    skip_unless_offered(trials, scenario)
    for rank, size in enumerate(trials.ask(ReplayCommand(scenario, trials.name), within.most_within, call)):
        entry = Entry("within", f"{size} bytes that the allocator adds within an {call}", call)
        demand(trials, scenario, rank, entry, size <= most, True, f"<= {most}: {bound}")


@pytest.mark.parametrize("stage", range(4))
def test_little_is_undeclared(trials: Trials, stage: int) -> None:
    """Between steps the living tensors that the engine does not declare take less than half a shard; also after the
    client has set parameters."""
    edited = _DEEP.but(stage=stage, edits=(1, 2))
    scenario = edited if trials.offers(edited) else edited.but(edits=())
    skip_unless_offered(trials, scenario)
    most = sum(p.nbytes for p in models.shapes(scenario).parameters()) // scenario.world // 2
    for census in ledgers(trials, scenario, "hidden"):
        size = sum(stray.bytes for stray in census.strays)
        entry = Entry("undeclared", f"{size} bytes of tensors that are alive and that no state declares")
        demand(trials, scenario, census.rank, entry, size <= most, True, f"<= {most}, half of a shard")


@pytest.mark.parametrize("stage", range(4))
def test_building_and_saving_receive_little(trials: Trials, stage: int) -> None:
    """An engine that is built receives at most the model twice. One that saves receives at most an all-reduce of each
    state."""
    scenario = _SMALL.but(stage=stage)
    skip_unless_offered(trials, scenario)
    saves = offers_saving(trials.subject, scenario)
    whole = bounds.fp32(scenario, models.shapes(scenario))
    states = 1 + len(state_keys(scenario.optimizer))
    all_reduce = 2 * whole * (scenario.world - 1) // scenario.world
    most = {"building": 2 * whole + _AGREEMENT, "saving": states * all_reduce + _AGREEMENT}
    for rank, found in enumerate(trials.ask(ReplayCommand(scenario, trials.name), within.received, saves)):
        for (what, bound), size in zip(most.items(), found, strict=True):
            entry = Entry("traffic", f"{size} bytes received while {what}", what)
            demand(trials, scenario, rank, entry, size <= bound, True, f"<= {bound}: {what}")


@pytest.mark.parametrize("stage", range(4))
def test_nothing_is_left_of_a_closed_engine(trials: Trials, stage: int) -> None:
    """After four engines, of which each has saved and loaded and is closed before the next is built, a process has no
    more tensors, open descriptors, threads and files than after the first. If states are in files, the four read
    ahead, write behind, or both, or neither."""
    scenario = _in_files(trials, stage)
    skip_unless_offered(trials, scenario)
    pipelined = all(trials.offers(scenario.but(pipeline_read=read, pipeline_write=write)) for read, write in _PIPELINES)
    each = _PIPELINES if pipelined else [_PIPELINES[0]] * _TIMES
    saves = trials.offers(scenario.but(resumes=(1,), steps=2, loads_into="same"))
    found = trials.ask(ReplayCommand(scenario, trials.name), within.held_after_closing, each, saves)
    for rank, (first, last) in enumerate(found):
        for name, before in vars(first).items():
            entry = Entry("left", f"{name} after {_TIMES} closed engines", name)
            after = vars(last)[name]
            demand(trials, scenario, rank, entry, after <= before, True, f"{after} <= {before}, as after the first")
        entry = Entry("left", f"{first.files} files of a closed engine", "files")
        demand(trials, scenario, rank, entry, first.files, 0, "a closed engine leaves none")


def _in_files(trials: Trials, stage: int) -> Scenario:
    """With all states in files that may be there at this stage, or with as many as the engine offers."""
    plain = _SMALL.but(stage=stage, steps=1)
    one = plain.but(offload_optimizer="nvme", offload_param="nvme" if stage == 3 else "none")
    offered = (each for each in (one, one.but(offload_param="none")) if trials.offers(each))
    return next(offered, plain)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_files_have_what_is_declared(trials: Trials, stage: int) -> None:
    """The files of all ranks together have the bytes that the engine declares, and a tenth more at most."""
    scenario = _SMALL.but(stage=stage, offload_optimizer="nvme", offload_param="nvme" if stage == 3 else "none")
    skip_unless_offered(trials, scenario)
    found = trials.ask(ReplayCommand(scenario, trials.name), within.files_of_a_step)
    declared, there = (sum(each) for each in zip(*found, strict=True))
    entry = Entry("files", f"{there} bytes in files, {declared} of them declared", "files")
    demand(trials, scenario, 0, entry, there <= declared + declared // 10, True, "<= 1.1 * declared")
