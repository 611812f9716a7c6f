"""Histories: the same steps with other calls between them, or with a step that is skipped, and the cost of each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch.distributed as dist

from zerobench import subjects
from zerobench.bench.ledger import sizes_of_gradients
from zerobench.driver import directory_of, draw_batches, model_for, run_step, run_steps, save, start, wrap
from zerobench.meters import TrafficMeter, beside_tensors, in_cycles, resident_states
from zerobench.recording import Traffic
from zerobench.scenario import Scenario
from zerobench.subject import Bytes, Subject
from zerobench.suites.accounting.within import Held
from zerobench.suites.support.client import offers_edits, offers_returning, offers_saving
from zerobench.workload.changes import edited
from zerobench.workload.data import held_out

#: The calls between two steps. A gradient is read inside a step, before its update; "evaluation in a step" comes after
#: the first micro-step.
Between = Literal["nothing", "evaluation", "evaluation in a step", "reading", "saving", "loading", "editing"]

Costs = dict[str, Traffic]


@dataclass
class Call:
    """An evaluation or a reading: the step before or in which it comes, its traffic, and the bytes resident before and
    after it."""

    what: str
    step: int
    traffic: Costs
    before: Bytes
    after: Bytes


@dataclass
class History:
    """One rank's costs, by step: its traffic without any reading, the bytes resident after it, the most bytes of
    gradients that waited for the engine at once, whether it was skipped; and the calls between the steps."""

    rank: int
    traffic: list[Costs] = field(default_factory=list)
    resident: list[Bytes] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def trace(group: dist.ProcessGroup, subject: str, scenario: Scenario, between: Between) -> History:
    """One rank's part: train the Scenario, and make the calls before each step except the first."""
    found, kind = History(dist.get_rank(group)), subjects.load(subject)
    model = model_for(kind, scenario, found.rank)
    waiting = sizes_of_gradients(model)
    with closing(wrap(model, kind, scenario, group)) as engine, directory_of(group) as directory:
        for index in range(scenario.steps):
            for what, call in calls_between(engine, scenario, between, directory).items() if index else ():
                found.calls.append(_metered(engine, what, index, call))
            waiting.clear()
            _step(engine, scenario, index, found, between)
            found.waiting.append(max(waiting, default=0))
    return found


def calls_between(
    engine: Subject, scenario: Scenario, between: Between, directory: Path
) -> dict[str, Callable[[], object]]:
    """The calls of this kind, each by its name."""
    if between in ("nothing", "evaluation in a step"):
        return {}
    if between == "evaluation":
        return {"evaluation": lambda: engine.evaluate(held_out(scenario))}
    if between == "saving":
        return {"saving": lambda: save(engine, scenario, directory, 0)}
    if between == "loading":
        return {"loading": lambda: engine.load(directory)}
    if between == "editing":
        return {"editing": lambda: engine.set_parameters(edited(scenario, 0))}
    return {
        "reading of parameters": engine.parameters,
        "reading of model parameters": engine.model_parameters,
        "reading of optimizer state": engine.optimizer_state,
    }


def _metered(engine: Subject, what: str, step: int, call: Callable[[], object]) -> Call:
    before = resident_states(engine.resident())
    with TrafficMeter() as meter:
        call()
    return Call(what, step, meter.traffic, before, resident_states(engine.resident()))


def _step(engine: Subject, scenario: Scenario, index: int, found: History, between: Between) -> None:
    left = scenario.accumulation

    def call(phase: str) -> None:
        """After the last backward a reading, or after the first an evaluation, whose traffic does not count."""
        nonlocal left
        left -= phase == "backward"
        if between == "reading" and phase == "backward" and not left:
            apart("reading of gradients", engine.gradients)
        if between == "evaluation in a step" and phase == "backward" and left == scenario.accumulation - 1:
            apart("evaluation in a step", lambda: engine.evaluate(held_out(scenario)))

    def apart(what: str, made: Callable[[], object]) -> None:
        counted = dict(meter.traffic)
        found.calls.append(_metered(engine, what, index, made))
        meter.traffic = counted

    with TrafficMeter() as meter:
        step = run_step(engine, scenario, index, found.rank, mark=call)
    found.traffic.append(meter.traffic)
    found.resident.append(resident_states(engine.resident()))
    found.skipped.append(step.skipped)


_NOTHING = Held(0, 0, 0)
#: The part of a long run, at its end, whose outcomes nobody reads.
_UNREAD = 1 / 6


@dataclass(frozen=True)
class BesideTensors:
    """What a process has that is no tensor: bytes in use, 0 if they cannot be counted, and objects that the collector
    knows."""

    bytes: int = 0
    objects: int = 0

    @classmethod
    def now(cls, recorded: int) -> BesideTensors:
        """Without the objects that this test has recorded."""
        return cls(beside_tensors() or 0, len(gc.get_objects()) - recorded)


@dataclass
class LongRun:
    """The memory of the process after some steps and after the last, that beside tensors half-way and at the end, the
    bytes of tensors that only the collector frees, the traffic of the steps that were applied and cost as much as
    others, by step, and that of the calls before a step."""

    early: Held = _NOTHING
    late: Held = _NOTHING
    half_way: BesideTensors = BesideTensors()
    last: BesideTensors = BesideTensors()
    cycles: int = 0
    traffic: dict[int, Costs] = field(default_factory=dict)
    called: dict[int, Costs] = field(default_factory=dict)

    @property
    def recorded(self) -> int:
        """The number of objects of the traffic."""
        return sum(1 + len(costs) for by_step in (self.traffic, self.called) for costs in by_step.values())


def long_run(group: dist.ProcessGroup, subject: str, scenario: Scenario, after: int) -> LongRun:
    """One rank's part: train the Scenario and look at memory after ``after`` steps and after the last, with every call
    that a client makes between steps in each round of three steps. Nobody asks for the outcome of the step before the
    first look, and of the last few: an engine may keep that of one step.

    The collector rests in the first half: a training loop must not depend on it.
    """
    found, kind, rank = LongRun(), subjects.load(subject), dist.get_rank(group)
    rounds = rounds_of(kind, scenario)
    with closing(start(kind, scenario, group)) as engine, directory_of(group) as directory, _collecting():
        for index in range(scenario.steps):
            with TrafficMeter() as called:
                for between in rounds if index % 3 == 2 else ():
                    for call in calls_between(engine, scenario, between, directory).values():
                        call()
            found.called[index] = called.traffic
            if index + 1 == after or index >= scenario.steps * (1 - _UNREAD):
                run_steps(engine, scenario, index, rank, [draw_batches(scenario, index, rank)])
            else:
                with TrafficMeter() as meter:  # an engine may keep what was read until it steps
                    step = run_step(engine, scenario, index, rank)
                if not step.skipped and not _costs_apart(scenario, index):
                    found.traffic[index] = meter.traffic
            if index + 1 == after:
                found.early = Held.now()
                gc.disable()
            if index + 1 == scenario.steps // 2:
                found.cycles = in_cycles()
                gc.enable()
                found.half_way = BesideTensors.now(found.recorded)
        found.late, found.last = Held.now(), BesideTensors.now(found.recorded)
    return found


def _costs_apart(scenario: Scenario, step: int) -> bool:
    """Whether a step itself costs more or less than others: what follows it must not."""
    shorter = scenario.micro_steps_of(step) < scenario.accumulation
    return shorter or step in scenario.frozen_steps or scenario.edits_gradients(step)


def rounds_of(kind: type[Subject], scenario: Scenario) -> list[Between]:
    """The calls of a round that the engine offers; it loads what it has just saved."""
    rounds: list[Between] = ["evaluation", "reading"]
    if offers_saving(kind, scenario):
        rounds.append("saving")
    if offers_returning(kind, scenario):
        rounds.append("loading")
    if offers_edits(kind, scenario):
        rounds.append("editing")
    return rounds


@contextmanager
def _collecting() -> Iterator[None]:
    """Let the collector run again after the block, however it ends."""
    try:
        yield
    finally:
        gc.enable()
