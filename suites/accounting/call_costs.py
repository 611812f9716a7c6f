"""The costs of each call of a training with all kinds of calls, and a bound of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import directory_of, draw_batches, model_for, wrap
from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.meters import PeakMeter, TrafficMeter
from zerobench.oracles.rules import state_keys
from zerobench.scenario import Scenario
from zerobench.subject import Bytes, Subject
from zerobench.suites.accounting import bounds
from zerobench.suites.accounting.ledger import demand_at_most
from zerobench.suites.accounting.within import Held, bytes_received, carried, moved_so_far, temporary_files_in
from zerobench.suites.support.client import offers_edits, offers_returning
from zerobench.suites.support.loads import load_fails, spoil
from zerobench.suites.support.trials import Trials
from zerobench.workload import models
from zerobench.workload.changes import edited, without_gradient
from zerobench.workload.data import DTYPES, held_out

T = TypeVar("T")


@dataclass
class CallCost:
    """What one call adds to memory at its peak, receives, reads and writes, in bytes; ``carried`` are those that its
    collectives may write, by the meters' count.

    ``read`` and ``written`` are 0 if the kernel does not count them. Messages are written, and received without reads.
    """

    name: str
    received: int
    read: int
    written: int
    carried: int
    added: int = 0


@dataclass(frozen=True)
class Journey:
    """One rank's costs of each call, in order, from the building of the engine to its closing; the bytes of each state
    that the engine has in files; and all that the process holds after the first step and after the last."""

    calls: list[CallCost]
    in_files: Bytes
    early: Held
    late: Held


@dataclass
class _Meters:
    """The meters around each call, which all ranks begin together."""

    group: dist.ProcessGroup
    peak: PeakMeter
    found: list[CallCost] = field(default_factory=list)

    def of(self, what: str, call: Callable[[], T]) -> T:
        """The call's result."""
        dist.barrier(self.group)
        self.peak.restart()
        before = moved_so_far()
        with TrafficMeter() as meter:
            result = call()
        read, written = (now - then for now, then in zip(moved_so_far(), before, strict=True))
        self.peak.restart()
        self.found.append(CallCost(what, bytes_received(meter), read, written, carried(meter, self.group.size())))
        return result


def journey(
    group: dist.ProcessGroup, name: str, scenario: Scenario, loads: bool, edits: bool, edits_gradients: bool
) -> Journey:
    """One rank's part: train three steps with every kind of call, those of them that the engine offers."""
    rank, kind = dist.get_rank(group), subjects.load(name)
    with ExitStack() as stack:
        peak, directory = stack.enter_context(PeakMeter()), stack.enter_context(directory_of(group))
        saved = stack.enter_context(directory_of(group))
        stack.enter_context(temporary_files_in(directory))
        meters, scenario = _Meters(group, peak), scenario.but(nvme_path=str(directory))
        model = model_for(kind, scenario, rank)
        engine = meters.of("building", lambda: wrap(model, kind, scenario, group))
        with ExitStack() as after_failure:
            after_failure.callback(engine.close)
            for batch in draw_batches(scenario, 0, rank):
                meters.of("first micro-step", partial(engine.micro_step, batch))
            meters.of("first update", engine.step)
            early, in_files = Held.now(directory), dict(engine.offloaded().files)
            for what, call in _calls(engine, scenario, group, saved, loads, edits, edits_gradients):
                meters.of(what, call)
            late = Held.now(directory)
            after_failure.pop_all()
        meters.of("closing", engine.close)
    for each, added in zip(meters.found, peak.added[::2], strict=True):
        each.added = added
    return Journey(meters.found, in_files, early, late)


def _calls(
    engine: Subject,
    scenario: Scenario,
    group: dist.ProcessGroup,
    saved: Path,
    loads: bool,
    edits: bool,
    edits_gradients: bool,
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The calls by name, in an order in which each comes after another kind; each is made before the next is asked
    for."""
    values, batch = edited(scenario, 0), held_out(scenario)

    def evaluate() -> object:
        return engine.evaluate(batch)

    yield "evaluation", evaluate
    yield "reading of parameters", engine.parameters
    yield "reading of optimizer state", engine.optimizer_state
    yield "reading of model parameters", engine.model_parameters
    if edits:
        yield "edit", lambda: engine.set_parameters(values)
        yield "evaluation", evaluate
    if loads:
        engine.save(saved)  # the first one reads the code of libraries
        yield "save", lambda: engine.save(saved)
        yield "load", lambda: engine.load(saved)
        yield "evaluation", evaluate
        if engine.survives_failed_loads:
            spoil(group, saved, "cut", scenario.seed)
            yield "load", lambda: load_fails(engine, saved, group)
    for step in (1, 2):
        for each in draw_batches(scenario, step, dist.get_rank(group)):
            what = "micro-step" if step == 1 else "micro-step after a step"
            yield what, lambda each=each: engine.micro_step(each)  # type: ignore[misc]
        if step == 2:
            if edits_gradients:
                yield "edit of gradients", lambda: engine.zero_gradients(without_gradient(scenario, 0))
            yield "reading of gradients", engine.gradients
        yield "update", engine.step


@dataclass(frozen=True)
class Most:
    """The bounds of a call, in bytes; None if a number has none."""

    added: int | None
    received: int | None
    read: int | None = None
    written: int | None = None


def bounds_of_calls(scenario: Scenario, in_files: Bytes) -> dict[str, Most]:
    """The bounds of each kind of call of the reference engine.

    A rank lacks the shards of the others, and may receive the gradients of all of them. Values are gathered a few
    blocks at a time, and a reading may gather a unit twice. A reading of a state in files reads all states of a
    sub-group. An update that reads ahead may read in vain, as the units may come in another order.
    """
    model, sharded, world = models.shapes(scenario), scenario.placement, scenario.world
    blocks, whole = bounds.of_ten_blocks(model), bounds.fp32(scenario, model)
    states = len(state_keys(scenario.optimizer))
    lacking = whole * (world - 1) // world
    gathered = lacking * DTYPES[scenario.dtype].itemsize // 4
    ranks = world if sharded.optimizer else 1
    unsharded = gathered if sharded.parameters else 0
    updated = gathered if sharded.optimizer and not sharded.parameters else 0
    all_files, parameters = (
        size + size // 10 + _SMALL for size in (sum(in_files.values()), in_files.get("parameters", 0))
    )
    # those of two forwards, two backwards and a recomputation; before it no call has begun to read other states
    alone = 5 * parameters + in_files.get("gradients", 0) * 11 // 10 + _SMALL
    every, saved = 1 + states, (1 + states) * whole
    own = saved // ranks + whole // 2
    by_torch = scenario.optimizer.name in _BY_TORCH
    passes = Most(None, world * lacking + 3 * unsharded + _SMALL, 2 * parameters + all_files, all_files)
    update = Most(blocks * (1 + by_torch), updated + _SMALL, all_files * (1 + scenario.pipeline_read), all_files)
    return {
        "building": Most(own + 2 * whole + blocks, 2 * whole + bounds.AGREEMENT, None, all_files + _SMALL),
        "closing": Most(blocks, _SMALL, _SMALL, all_files),
        "evaluation": Most(blocks, unsharded, parameters, _SMALL),
        "reading of parameters": Most(2 * whole + blocks, 2 * lacking, all_files, _SMALL),
        "reading of optimizer state": Most(saved + blocks, 2 * states * lacking, every * all_files, _SMALL),
        "reading of gradients": Most(whole + blocks, 2 * lacking, all_files, _SMALL),
        "reading of model parameters": Most(2 * whole + blocks, 2 * unsharded, 2 * all_files, all_files),
        "edit": _of_an_edit(scenario, whole, blocks, all_files),
        "edit of gradients": Most(whole + blocks, 2 * lacking, 2 * all_files),
        "save": Most(saved // world + blocks, world * _PLAN, every * all_files + _PLAN, own + 2 * _PLAN),
        "load": Most(saved // ranks + blocks, gathered + _PLAN, own + 2 * all_files + _PLAN, all_files + _SMALL),
        "micro-step": passes,
        "micro-step after a step": replace(passes, read=alone + (all_files if scenario.pipeline_read else 0)),
        "update": update,
        "first micro-step": replace(passes, read=None),  # the first ones read the code of libraries
        "first update": replace(update, read=None),
    }


def _of_an_edit(scenario: Scenario, whole: int, blocks: int, all_files: int) -> Most:
    """Of the edit of every parameter: in one context, or by one call each, which may rewrite a sub-group."""
    if scenario.edits_in_place:
        return Most(whole + blocks, 2 * whole, 2 * all_files, 2 * all_files)
    return Most(blocks, _SMALL)


def each_call(trials: Trials, scenario: Scenario) -> None:
    """The memory that each call adds, the bytes that it receives and reads, and, on one rank, those that it writes; and
    all that the process holds after the last step, beside the first. Another engine than the reference engine may have
    twice as many bytes in a call, as it may gather or copy values twice."""
    loads, edits = offers_returning(trials.subject, scenario), offers_edits(trials.subject, scenario)
    zeroes = trials.offers(scenario.but(gradient_edits=(1,)))
    room, times = bounds.of_a_block(models.shapes(scenario)), 1 if trials.subject.name == "reference" else 2
    for rank, found in enumerate(trials.ask(ReplayCommand(scenario, trials.name), journey, loads, edits, zeroes)):
        most = bounds_of_calls(scenario, found.in_files)
        for call in found.calls:
            for number, verb in _NUMBERS.items():
                bound = getattr(most[call.name], number)
                if bound is None:
                    continue
                size, bound = getattr(call, number), bound * times
                bound += call.carried if number == "written" else 0  # messages are writes, too
                entry = Entry("within", f"{size} bytes {verb} within one {call.name}", call.name)
                demand_at_most(trials, scenario, rank, entry, size, bound, f"the bound of one {call.name}, {verb}")
        # threads for files come as they are needed
        for what, beside in {"tensors": room, "descriptors": 0, "files": 0, "processes": 0}.items():
            size, bound = getattr(found.late, what), getattr(found.early, what) + beside
            entry = Entry("left", f"{size} {what} after the last step", what)
            demand_at_most(trials, scenario, rank, entry, size, bound, "as after the first step, and a block")


_NUMBERS = {"added": "that the allocator adds", "received": "received", "read": "read", "written": "written"}
#: Rules whose formula is torch's operators, some in fp64, which hold more values of a block at once.
_BY_TORCH = "lion", "adagrad"
#: Bytes of flags, norms and names; and of the plan in which ranks agree on the content of a checkpoint.
_SMALL, _PLAN = 1 << 14, 3 << 16
