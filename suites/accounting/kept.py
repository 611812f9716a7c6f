"""Memory that a call leaves for a while: it is gone before the next step ends, and no count after it shows it."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import directory_of, draw_batches, edit_gradients, run_step, start
from zerobench.driver.reading import read_at
from zerobench.meters import PeakMeter, TrafficMeter
from zerobench.scenario import Scenario
from zerobench.suites.accounting.history import Between, calls_between, rounds_of

_STEP = 1


def most_in_last_micro_step(group: dist.ProcessGroup, name: str, scenario: Scenario, calls: bool) -> int:
    """One rank's part: the most bytes from the last micro-step of the second step to its end, beyond those before the
    engine is built; with or without every call that a client makes between steps before it, and the Scenario's readings
    between its first two micro-steps. It saves and loads if the Scenario does, in the engine that has saved."""
    kind, rank = subjects.load(name), dist.get_rank(group)
    left_out = () if scenario.resumed and scenario.loads_into == "same" else ("saving", "loading")
    with PeakMeter() as peak, closing(start(kind, scenario, group)) as engine, directory_of(group) as directory:
        run_step(engine, scenario, 0, rank)
        rounds: list[Between] = rounds_of(kind, scenario) if calls else []
        for each in (each for each in rounds if each not in left_out):
            for call in calls_between(engine, scenario, each, directory).values():
                call()
        *others, last = draw_batches(scenario, _STEP, rank)
        for batch in others:
            engine.micro_step(batch)
        if calls:
            read_at(engine, scenario, _STEP, 1)
        dist.barrier(group)
        peak.restart()
        engine.micro_step(last)
        engine.step()
    return peak.bytes


def most_in_update(group: dist.ProcessGroup, name: str, scenario: Scenario, reads: bool) -> int | None:
    """One rank's part: the most bytes from the first collective of the second update on, beyond those before the engine
    is built; with or without gradients that the client has edited, if the Scenario has it, and states and gradients
    that it has read, before the update.
    None if the update has no collective: an engine may keep what was read until the update begins. A barrier is none,
    because an engine may wait for the other ranks before it begins."""
    rank, began = dist.get_rank(group), list[str]()
    with PeakMeter() as peak, closing(start(subjects.load(name), scenario, group)) as engine:
        run_step(engine, scenario.but(gradient_edits=()), 0, rank)
        for batch in draw_batches(scenario, _STEP, rank):
            engine.micro_step(batch)
        if reads:
            edit_gradients(engine, scenario, _STEP)
            engine.optimizer_state()
            engine.gradients()
        dist.barrier(group)
        with TrafficMeter(partial(_restart_at_first, peak, began)):
            engine.step()
    return peak.bytes if began else None


def _restart_at_first(peak: PeakMeter, began: list[str], collective: str) -> None:
    if collective == "barrier":
        return
    if not began:
        peak.restart()
    began.append(collective)
