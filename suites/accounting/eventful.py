"""Eventful trainings: the cost of the last step of a Scenario, whatever came before it."""

from __future__ import annotations

import gc
from contextlib import closing
from dataclasses import dataclass

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import Run, directory_of
from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.meters import PeakMeter, TrafficMeter, resident_states
from zerobench.recording import Step
from zerobench.scenario import Scenario
from zerobench.subject import Bytes
from zerobench.suites.accounting import bounds
from zerobench.suites.accounting.forms import Form, demand_traffic
from zerobench.suites.accounting.history import Costs
from zerobench.suites.accounting.ledger import demand, demand_at_most
from zerobench.suites.accounting.within import Held, bytes_in_files, moved_so_far
from zerobench.suites.support.trials import Trials
from zerobench.workload import models

_WORDS = "as in the same step of the training without the events before it"


@dataclass(frozen=True)
class LastStep:
    """One rank's costs of the last step, with its own events: its traffic, the allocator's peak within it, the resident
    bytes of each state and all that the process holds after it, the bytes in the engine's files, and the bytes that the
    process has read and written within it, to files or others; 0 if the kernel does not count them."""

    traffic: Costs
    peak: int
    resident: Bytes
    held: Held
    in_files: int
    read: int
    written: int

    @property
    def received(self) -> int:
        """Bytes received by all collectives."""
        return sum(each.received for each in self.traffic.values())


def last_step(group: dist.ProcessGroup, name: str, scenario: Scenario) -> LastStep:
    """One rank's part: train the Scenario, and meter its last step."""
    with PeakMeter() as peak, directory_of(group) as directory:
        run = Run(subjects.load(name), scenario.but(nvme_path=str(directory)), group)
        with closing(run):
            for _ in range(scenario.steps - 1):
                run.step()
                _forget(run.steps[-1])
            gc.collect()  # an engine that was closed before a load may be in a cycle
            dist.barrier(group)
            before = moved_so_far()
            peak.restart()
            with TrafficMeter() as traffic:
                run.step()
            read, written = (now - then for now, then in zip(moved_so_far(), before, strict=True))
            resident, held = resident_states(run.subject.resident()), Held.now(directory)
            in_files = bytes_in_files(directory, visible=run.rank == 0)
            dist.barrier(group)
    return LastStep(traffic.traffic, peak.bytes, resident, held, in_files, read, written)


def _forget(step: Step) -> None:
    """Empty the recording of a step, which is no cost of the engine."""
    step.reads.clear()
    step.progress.clear()


def uneventful(scenario: Scenario) -> Scenario:
    """The Scenario without the events before its last step."""
    last = scenario.steps - 1
    return scenario.but(
        short_steps=tuple(each for each in scenario.short_steps if each[0] == last),
        poison=tuple(each for each in scenario.poison if each[0] == last),
        zeroed=tuple(each for each in scenario.zeroed if each[0] == last),
        reads=tuple(each for each in scenario.reads if each.step == last),
        **{name: tuple(step for step in getattr(scenario, name) if step == last) for name in _STEPS},
    )


#: The fields that are the steps in which something happens.
_STEPS = "edits", "gradient_edits", "frozen_steps", "resumes"


def after_events(trials: Trials, scenario: Scenario) -> None:
    """The last step's costs, beside those without the events before it."""
    plain, other = (
        trials.ask(ReplayCommand(each, trials.name), last_step) for each in (uneventful(scenario), scenario)
    )
    step, room = scenario.steps - 1, bounds.of_a_block(models.shapes(scenario))
    for rank, (expected, got) in enumerate(zip(plain, other, strict=True)):
        form = Form.exactly(_WORDS, expected.traffic)
        demand_traffic(trials, scenario, rank, "the last step", step, got.traffic, form)
        for state, size in expected.resident.items():
            entry = Entry("resident", f"bytes of {state} resident after the last step", state, step)
            demand(trials, scenario, rank, entry, got.resident[state], size, _WORDS)
        entry = Entry("within", f"{got.peak} bytes at once in the last step", "kept")
        demand_at_most(trials, scenario, rank, entry, got.peak, expected.peak + room, f"{_WORDS}, and one block")
        for what in ("tensors", "descriptors", "files"):  # threads for files come as they are needed
            size, most = (
                getattr(got.held, what),
                getattr(expected.held, what) + (_OF_THE_CLIENT if what == "tensors" else 0),
            )
            entry = Entry("left", f"{size} {what} after the last step", what)
            demand_at_most(trials, scenario, rank, entry, size, most, _WORDS)
        entry = Entry("files", f"{got.in_files} bytes in files after the last step", "files")
        demand(trials, scenario, rank, entry, got.in_files, expected.in_files, _WORDS)
        _demand_moved(trials, scenario, rank, got, expected, _WORDS)


def lesser_step(trials: Trials, scenario: Scenario) -> None:
    """The costs of the last step, which alone is short, skipped or has a part at rest, beside those of a whole one."""
    whole = scenario.but(short_steps=(), poison=(), frozen_steps=())
    wholes, others = (trials.ask(ReplayCommand(each, trials.name), last_step) for each in (whole, scenario))
    for rank, (most, got) in enumerate(zip(wholes, others, strict=True)):
        size, bound = got.received, most.received + _SMALL
        entry = Entry("within", f"{size} bytes received in the last step", "received")
        demand_at_most(trials, scenario, rank, entry, size, bound, f"{_OF_A_WHOLE}, and 64 KiB")
        _demand_moved(trials, scenario, rank, got, most, _OF_A_WHOLE)


_OF_A_WHOLE = "as in a whole step"


def _demand_moved(trials: Trials, scenario: Scenario, rank: int, got: LastStep, most: LastStep, words: str) -> None:
    """Demand that the last step reads and writes no more than another one; of several ranks, that it writes no more,
    and a tenth: others are sent to by writes, in messages with headers, and a map of a file reads without."""
    alone = scenario.world == 1
    for verb in ("read", "written") if alone else ("written",):
        size, before = getattr(got, verb), getattr(most, verb)
        bound = before + _SMALL if alone else before + before // 10 + _SMALL
        entry = Entry("files", f"{size} bytes {verb} in the last step", verb)
        demand_at_most(trials, scenario, rank, entry, size, bound, f"{words}, and 64 KiB", words)


#: Bytes of names, counts and logs; and of the tensors in a client's state, which a load gives back.
_SMALL, _OF_THE_CLIENT = 1 << 16, 1 << 10
