"""Costs: the numbers to which the suite holds an engine, each by the name that a known finding gives.

A function judges one Scenario: it measures on the ranks, and raises if a number is larger than its bound, or not the
one that it must equal. The tests give it their Scenarios; test_known_findings.py gives it those of the known findings.
Costs of histories are in histories.py, and that of the network in network.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import pytest

from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.oracles.rules import state_keys
from zerobench.scenario import Loads, Scenario
from zerobench.suites.accounting import bounds, held, kept, within
from zerobench.suites.accounting.call_costs import each_call
from zerobench.suites.accounting.calls import changing
from zerobench.suites.accounting.eventful import after_events
from zerobench.suites.accounting.forwards import forward, gathered
from zerobench.suites.accounting.histories import (
    after_evaluation,
    after_evaluation_in_a_step,
    after_forward,
    after_reading,
    after_rest,
    after_saving,
    after_short_step,
    after_skip,
    long_run,
)
from zerobench.suites.accounting.ledger import Cost, demand, demand_account, demand_at_most, ledgers
from zerobench.suites.accounting.network import wire
from zerobench.suites.support.client import offers_edits, offers_returning, offers_saving
from zerobench.suites.support.trials import Trials
from zerobench.workload import models

#: Whether each of the engines that follow each other in one process reads ahead and writes behind.
_PIPELINES = [(False, False), (True, False), (False, True), (True, True)]
_TIMES = len(_PIPELINES)


def states(trials: Trials, scenario: Scenario) -> None:
    """The bytes of each state, in closed form."""
    demand_account(trials, scenario, "states")


def traffic(trials: Trials, scenario: Scenario) -> None:
    """The calls and bytes of each collective, in closed form."""
    demand_account(trials, scenario, "traffic")


def offload(trials: Trials, scenario: Scenario) -> None:
    """The bytes off the device, and those moved there and back, in closed form."""
    demand_account(trials, scenario, "offload")


def peaks(trials: Trials, scenario: Scenario) -> None:
    """The most bytes of whole parameters, in closed form."""
    demand_account(trials, scenario, "peaks")


def sharded(trials: Trials, scenario: Scenario) -> None:
    """The states that the stage shards, of all ranks together, between steps."""
    scenario = _sharding(trials, scenario)
    measured = ledgers(trials, scenario, "states")
    for state, most in bounds.most_of_all_ranks(scenario, models.shapes(scenario)).items():
        for step in range(len(measured[0].resident)):
            size = sum(ledger.resident[step][state] for ledger in measured)
            entry = Entry("resident", f"{size} bytes of {state} on all ranks after step {step}", state, step)
            demand_at_most(trials, scenario, 0, entry, size, most, "one copy, and padding")


def _sharding(trials: Trials, scenario: Scenario) -> Scenario:
    """The Scenario with the setting with which the engine documents that it shards."""
    setting = trials.subject.policies.sharded_with
    return scenario.but(settings=(setting,)) if setting else scenario


def backward(trials: Trials, scenario: Scenario) -> None:
    """The tensors that a backward adds."""
    scenario = _sharding(trials, scenario)
    most = bounds.most_in_backward(scenario, models.shapes(scenario))
    for rank, size in enumerate(trials.ask(ReplayCommand(scenario, trials.name), held.most_in_backward)):
        entry = Entry("unreduced", f"{size} bytes of tensors that a backward adds", "gradients")
        demand_at_most(trials, scenario, rank, entry, size, most, "its shard, and ten blocks")


def process(trials: Trials, scenario: Scenario) -> None:
    """Memory that is no tensor, or none that Python reaches; skips the test if the C library does not count it."""
    model, theory = models.shapes(scenario), trials.subject.theory()
    shard = sum(p.nbytes for p in model.parameters()) // scenario.world
    for rank, found in enumerate(trials.ask(ReplayCommand(scenario, trials.name), held.beside)):
        if found is None:
            pytest.skip("the C library does not count the bytes in use")
        small, size = found
        unseen = theory.unseen(scenario, model, rank) if theory else 0
        bound = "half of a shard, and tensors that Python does not reach" if unseen else "half of a shard"
        entry = Entry("process", f"{size} bytes that are no tensor; the engine with a small model adds {small}")
        demand_at_most(trials, scenario, rank, entry, size, shard // 2 + unseen, bound)


def growth(trials: Trials, scenario: Scenario) -> None:
    """The tensors alive after eight steps, beyond those after three."""
    demand_account(trials, scenario, "growth")


def received(trials: Trials, scenario: Scenario) -> None:
    """The bytes that all ranks receive, beside those that all ranks send."""
    demand_account(trials, scenario, "received")


def update(trials: Trials, scenario: Scenario) -> None:
    """The memory that an update adds."""
    model = models.shapes(scenario)
    most = 2 * bounds.most_in_backward(scenario, model) - bounds.of_ten_blocks(model)
    if scenario.placement.gradients:
        _within(trials, scenario, "update", most, "two copies of its shard, and ten blocks")
        return
    most += bounds.fp32(scenario, model)  # an engine may reduce in step(), in one flat bucket
    _within(trials, scenario, "update", most, "two copies of its shard, a flat copy of all gradients, and ten blocks")


def updating(trials: Trials, scenario: Scenario) -> None:
    """The memory that an update of the reference engine adds: it steps each unit's states in place."""
    _within(trials, scenario, "update", bounds.of_ten_blocks(models.shapes(scenario)), "ten blocks")


def evaluation(trials: Trials, scenario: Scenario) -> None:
    """The memory that an evaluation adds."""
    most = bounds.of_ten_blocks(models.shapes(scenario)) + gathered(trials, scenario)
    _within(trials, scenario, "evaluation", most, "ten blocks")


def within_building(trials: Trials, scenario: Scenario) -> None:
    """The memory that building an engine adds."""
    room = bounds.of_ten_blocks(models.shapes(scenario))
    for rank, (added, declared) in enumerate(trials.ask(ReplayCommand(scenario, trials.name), within.most_in_building)):
        entry = Entry("within", f"{added} bytes that the allocator adds within building", "building")
        demand_at_most(trials, scenario, rank, entry, added, declared + room, "the rank's states, and ten blocks")


def written(trials: Trials, scenario: Scenario) -> None:
    """The bytes that an evaluation, readings and a skipped update write; one rank, because others are sent to by
    writes, too."""
    [size] = trials.ask(ReplayCommand(scenario, trials.name), within.written_between_steps)
    if size is None:
        pytest.skip("no /proc/self/io: the kernel does not count the bytes that a process writes")
    entry = Entry("files", f"{size} bytes that an evaluation, readings and a skipped update write", "written")
    demand_at_most(trials, scenario, 0, entry, size, bounds.AGREEMENT, "no state")


def saving(trials: Trials, scenario: Scenario) -> None:
    """The memory that a save adds."""
    _within(trials, scenario, "save", _states_of(scenario, scenario.world), "a rank's part of the file, and ten blocks")


def loading(trials: Trials, scenario: Scenario) -> None:
    """The memory that a load adds."""
    _within(trials, scenario, "load", _most_in_load(scenario), "one rank's states, and ten blocks")


def loading_elsewhere(trials: Trials, scenario: Scenario) -> None:
    """The bytes that a load of a state of other ranks receives; the memory that it adds and the bytes that it reads, if
    the engine promises the contract's bits. Such an engine loads what another stage has saved, too."""
    bits = trials.subject.promises_bits
    saved_by = scenario.but(world=6 - scenario.world, stage=3 - scenario.stage if bits else scenario.stage)
    if reason := trials.subject.not_offered(scenario.but(resumes=(1,))):
        pytest.skip(reason)
    copies, most = 1 + len(state_keys(scenario.optimizer)), _most_in_load(scenario)
    whole = copies * bounds.fp32(scenario, models.shapes(scenario)) + bounds.AGREEMENT
    with tempfile.TemporaryDirectory(prefix="zerobench-") as directory:
        trials.ask(ReplayCommand(saved_by, trials.name), within.save_for_others, Path(directory))
        found = trials.ask(ReplayCommand(scenario, trials.name), within.load_of_others, Path(directory))
    for rank, (received, added, read) in enumerate(found):
        entry = Entry("traffic", f"{received} bytes received while loading what other ranks saved", "loading elsewhere")
        demand_at_most(trials, scenario, rank, entry, received, whole, "each state once, in a load")
        entry = Entry("within", f"{added} bytes that the allocator adds within one load elsewhere", "load elsewhere")
        if bits:
            demand_at_most(trials, scenario, rank, entry, added, most, "one rank's states, and ten blocks")
            entry = Entry("files", f"{read} bytes read within one load elsewhere", "read elsewhere")
            demand_at_most(trials, scenario, rank, entry, read, 2 * most, "one rank's states, and ten blocks, twice")


def _most_in_load(scenario: Scenario) -> int:
    return _states_of(scenario, scenario.world if scenario.placement.optimizer else 1)


def editing(trials: Trials, scenario: Scenario) -> None:
    """The memory that an edit of parameters adds."""
    _within(trials, scenario, "edit", bounds.of_ten_blocks(models.shapes(scenario)), "ten blocks")


def read_values(trials: Trials, scenario: Scenario) -> None:
    """The memory that readings add: the model's parameters may be whole while the client copies them."""
    model = models.shapes(scenario)
    whole, blocks = bounds.fp32(scenario, model), bounds.of_ten_blocks(model)
    copies = max(2, len(state_keys(scenario.optimizer)))
    _within(trials, scenario, "reading of gradients", whole + blocks, "the gradients, and ten blocks")
    _within(trials, scenario, "reading", copies * whole + blocks, "the states that one returns, and ten blocks")


def editing_gradients(trials: Trials, scenario: Scenario) -> None:
    """The memory that an edit of gradients adds."""
    _within(trials, scenario, "edit of gradients", bounds.of_ten_blocks(models.shapes(scenario)), "ten blocks")


def reading(trials: Trials, scenario: Scenario) -> None:
    """The bytes that a load reads."""
    most = 2 * _most_in_load(scenario)
    for rank, size in enumerate(trials.ask(ReplayCommand(scenario, trials.name), within.read_in_load)):
        if size is None:
            pytest.skip("no /proc/self/io: the kernel does not count the bytes that a process reads")
        entry = Entry("read", f"{size} bytes that a rank reads in a load", "load")
        demand_at_most(trials, scenario, rank, entry, size, most, "one rank's states, and ten blocks, twice")


def _states_of(scenario: Scenario, ranks: int) -> int:
    """Bytes of masters and optimizer states if so many ranks share them, and ten blocks; of masters alone if the
    Scenario loads the model alone."""
    model = models.shapes(scenario)
    keys = [] if scenario.loads == "model" else state_keys(scenario.optimizer)
    states = (1 + len(keys)) * bounds.fp32(scenario, model)
    return states // ranks + bounds.of_ten_blocks(model)


def _within(trials: Trials, scenario: Scenario, call: within.Within, most: int, bound: str) -> None:
    for rank, size in enumerate(trials.ask(ReplayCommand(scenario, trials.name), within.most_within, call)):
        entry = Entry("within", f"{size} bytes that the allocator adds within one {call}", call)
        demand_at_most(trials, scenario, rank, entry, size, most, bound)


def kept_in_step(trials: Trials, scenario: Scenario) -> None:
    """The memory of the last micro-step and the update after every call between steps, and the Scenario's readings
    within the step, beside that without them."""
    _demand_released(trials, scenario, kept.most_in_last_micro_step, "a step after calls between steps")


def kept_in_update(trials: Trials, scenario: Scenario) -> None:
    """The memory of an update after the client has edited gradients and read them and optimizer states, beside that
    without it."""
    edited = scenario.but(gradient_edits=(1,))
    scenario = edited if trials.offers(edited) else scenario
    _demand_released(trials, scenario, kept.most_in_update, "an update after a reading of gradients")


def _demand_released(trials: Trials, scenario: Scenario, measure: Callable[..., int | None], what: str) -> None:
    """It needs ten blocks more at most."""
    command, room = ReplayCommand(scenario, trials.name), bounds.of_ten_blocks(models.shapes(scenario))
    plain, after = (trials.ask(command, measure, calls) for calls in (False, True))
    for rank, (expected, size) in enumerate(zip(plain, after, strict=True)):
        if expected is None or size is None:
            pytest.skip(f"{trials.name} sends nothing in an update, so that its beginning is not seen")
        entry = Entry("kept", f"{size} bytes at once in {what}", "kept")
        demand_at_most(trials, scenario, rank, entry, size, expected + room, "those without the calls, and ten blocks")


def undeclared(trials: Trials, scenario: Scenario) -> None:
    """The living tensors, between steps, that no state declares."""
    most = sum(p.nbytes for p in models.shapes(scenario).parameters()) // scenario.world // 2
    for census in ledgers(trials, scenario, "hidden"):
        size = sum(stray.bytes for stray in census.strays)
        entry = Entry("undeclared", f"{size} bytes of tensors that are alive and that no state declares")
        demand_at_most(trials, scenario, census.rank, entry, size, most, "half of a shard")


def building(trials: Trials, scenario: Scenario) -> None:
    """The bytes received while an engine is built, and while it saves; and those in files after it saves again."""
    saves = offers_saving(trials.subject, scenario)
    whole = bounds.fp32(scenario, models.shapes(scenario))
    states = 1 + len(state_keys(scenario.optimizer))
    all_reduce = 2 * whole * (scenario.world - 1) // scenario.world
    most = {
        "building": (2 * whole + bounds.AGREEMENT, "the model twice"),
        "saving": (states * all_reduce + bounds.AGREEMENT, "an all-reduce of each state"),
    }
    for rank, found in enumerate(trials.ask(ReplayCommand(scenario, trials.name), within.received, saves)):
        *received, once, twice = found
        for (what, (bound, words)), size in zip(most.items(), received, strict=True):
            entry = Entry("traffic", f"{size} bytes received while {what}", what)
            demand_at_most(trials, scenario, rank, entry, size, bound, f"{words}, while {what}")
        entry = Entry("files", f"{twice} bytes in files after a second save of a state", "saved")
        demand_at_most(trials, scenario, rank, entry, twice, once + bounds.AGREEMENT, "those after the first save")


def saved(trials: Trials, scenario: Scenario) -> None:
    """The bytes in the files of a saved state."""
    copies = 1 + len(state_keys(scenario.optimizer))
    most = copies * bounds.fp32(scenario, models.shapes(scenario)) + bounds.AGREEMENT
    [size, *_] = trials.ask(ReplayCommand(scenario, trials.name), within.saved)
    entry = Entry("files", f"{size} bytes in the files of a saved state", "saved")
    demand_at_most(trials, scenario, 0, entry, size, most, "masters and optimizer states once")


def closed(trials: Trials, scenario: Scenario) -> None:
    """All that a process still has after its engines are closed, and the files that they leave. They load everything or
    a part, alternating."""
    pipelined = all(trials.offers(scenario.but(pipeline_read=read, pipeline_write=write)) for read, write in _PIPELINES)
    each = _PIPELINES if pipelined else [_PIPELINES[0]] * _TIMES
    resumed = scenario.but(resumes=(1,), steps=2)
    parts = [part for part in get_args(Loads) if trials.offers(resumed.but(loads=part))]
    loads = parts if trials.offers(resumed.but(loads_into="same")) else []
    found = trials.ask(ReplayCommand(scenario, trials.name), within.held_after_closing, each, loads)
    for rank, (first, last) in enumerate(found):
        for name, before in vars(first).items():
            entry = Entry("left", f"{name} after {_TIMES} closed engines", name)
            demand_at_most(trials, scenario, rank, entry, vars(last)[name], before, "those of the first closed engine")
        entry = Entry("left", f"{first.files} files of a closed engine", "files")
        demand(trials, scenario, rank, entry, first.files, 0, "a closed engine leaves no file")


def failures(trials: Trials, scenario: Scenario) -> None:
    """All that a process has after a step before which forwards raise, beside the step before."""
    for rank, (before, after) in enumerate(
        trials.ask(ReplayCommand(scenario, trials.name), within.held_after_failures)
    ):
        for name, most in vars(before).items():
            entry = Entry("left", f"{name} after forwards that raise, and a step", name)
            demand_at_most(trials, scenario, rank, entry, vars(after)[name], most, "as before the forwards that raise")


def files(trials: Trials, scenario: Scenario) -> None:
    """The bytes in files of all ranks after the Scenario's steps, and after loads and edits if the engine offers
    them."""
    loads = offers_returning(trials.subject, scenario)
    edits = offers_edits(trials.subject, scenario)
    found = trials.ask(ReplayCommand(scenario, trials.name), within.files_of_a_step, loads, edits)
    declared, there = (sum(each) for each in zip(*found, strict=True))
    entry = Entry("files", f"{there} bytes in files, {declared} of them declared", "files")
    demand_at_most(trials, scenario, 0, entry, there, declared + declared // 10, "1.1 of the declared bytes")


#: By the name that a known finding gives in ``costs``.
COSTS: Mapping[str, Cost] = {
    each.__name__: each
    for each in (
        states,
        traffic,
        offload,
        peaks,
        sharded,
        backward,
        process,
        growth,
        received,
        update,
        updating,
        evaluation,
        forward,
        saving,
        within_building,
        written,
        loading,
        loading_elsewhere,
        editing,
        editing_gradients,
        read_values,
        reading,
        kept_in_step,
        kept_in_update,
        undeclared,
        building,
        changing,
        saved,
        closed,
        failures,
        files,
        each_call,
        after_events,
        after_evaluation,
        after_evaluation_in_a_step,
        after_forward,
        after_reading,
        after_rest,
        after_saving,
        after_skip,
        after_short_step,
        long_run,
        wire,
    )
}
