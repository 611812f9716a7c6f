"""Ledgers: the bytes that an engine holds and sends in a Scenario, measured on every rank from outside.

Every function with a ``group`` is a task of a pool.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist
from torch import nn

from zerobench.driver import directory_of, model_for, resumed, run_step, save, wrap
from zerobench.judge.command import Account
from zerobench.meters import (
    OffloadMeter,
    ParameterPeak,
    Stray,
    TrafficMeter,
    live_tensors,
    off_device,
    resident,
    resident_states,
    unattributed,
)
from zerobench.recording import OffloadBytes, Traffic
from zerobench.scenario import Scenario
from zerobench.subject import Subject
from zerobench.subjects import load

#: Steps of a ledger: the first, one in which torch's DDP still arranges its buckets, and one like all that follow.
STEPS = 3
#: Numbers of steps after which the living tensors are counted.
COUNTED = (3, 8)

#: Seconds after which gloo's own threads may have freed the messages that they have sent; they take microseconds, if
#: they are given time.
_SETTLING = 0.2


@dataclass
class Ledger:
    """One rank's account; a list has an entry for each step if its account was requested, and ``resident`` always."""

    rank: int
    before: dict[str, int]  # bytes resident by state before the first step
    resident: list[dict[str, int]] = field(default_factory=list)  # after it
    traffic: list[dict[str, Traffic]] = field(default_factory=list)
    parameter_peaks: list[int] = field(default_factory=list)
    offload: list[OffloadBytes] = field(default_factory=list)


def fill_ledger(group: dist.ProcessGroup, subject: str, scenario: Scenario, asked: Account) -> Ledger:
    """One rank's part: train :data:`STEPS` steps, metering the requested account.

    A meter sees every operation, and a step under it takes several times as long.
    """
    rank = dist.get_rank(group)
    model = model_for(load(subject), scenario, rank)
    with closing(wrap(model, load(subject), scenario, group)) as engine:
        ledger = Ledger(rank, resident_states(engine.resident()))
        for index in range(STEPS):
            with _METERED[asked](ledger, engine, model):
                run_step(engine, scenario, index, rank)
            ledger.resident.append(resident_states(engine.resident()))
    return ledger


@contextmanager
def _unmetered(ledger: Ledger, engine: Subject, model: nn.Module) -> Iterator[None]:
    yield


@contextmanager
def _traffic(ledger: Ledger, engine: Subject, model: nn.Module) -> Iterator[None]:
    with TrafficMeter() as meter:
        yield
    ledger.traffic.append(meter.traffic)


@contextmanager
def _peak(ledger: Ledger, engine: Subject, model: nn.Module) -> Iterator[None]:
    peak = ParameterPeak(model)
    with TrafficMeter(peak.observe):
        yield
    ledger.parameter_peaks.append(peak.bytes)


@contextmanager
def _offload(ledger: Ledger, engine: Subject, model: nn.Module) -> Iterator[None]:
    with OffloadMeter() as moved:
        yield
    ledger.offload.append(off_device(engine, moved))


_METERED = {"states": _unmetered, "traffic": _traffic, "peaks": _peak, "offload": _offload}


@dataclass
class Census:
    """The tensors alive on one rank that the engine does not declare, and the bytes of all."""

    rank: int
    strays: list[Stray]  # after the last step
    live: dict[int, int] = field(default_factory=dict)  # bytes of all tensors, by number of steps done


def take_census(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> Census:
    """One rank's part: train steps and count the living after each number in :data:`COUNTED`.

    If the Scenario resumes in the engine that has saved, this one saves and loads; if a new engine loads a part, the
    tensors of that one are counted.
    """
    rank, kind = dist.get_rank(group), load(subject)
    resumes = scenario.resumes if scenario.loads_into == "same" or scenario.loads_part else ()
    earlier = live_tensors()
    start = resident(earlier)
    live, model = {}, model_for(kind, scenario, rank)
    with directory_of(group) if resumes else nullcontext(Path()) as directory, ExitStack() as closing_last:
        engine = closing_last.enter_context(closing(wrap(model, kind, scenario, group)))
        for index in range(COUNTED[-1]):
            if index in resumes and scenario.loads_part:
                save(engine, scenario, directory, index)
                closing_last.close()
                del engine
                gc.collect()
                earlier = live_tensors()  # an engine that is closed is judged elsewhere
                model = model_for(kind, scenario, rank, loaded=True)
                engine = closing_last.enter_context(closing(wrap(model, kind, scenario, group)))
                engine.load(directory)
            elif index in resumes:
                resumed(engine, scenario, group, directory, index)
            run_step(engine, scenario, index, rank)
            if index + 1 in COUNTED:
                live[index + 1] = settled() - start
        kept = [*engine.resident().values(), *engine.offloaded().host.values()]
        declared = [tensor for tensors in kept for tensor in tensors]
        return Census(rank, unattributed([*earlier, *declared, *model.buffers()]), live)


def settled() -> int:
    """Bytes of all tensors alive once they no longer change."""
    before, now = -1, resident(live_tensors())
    while now != before:
        time.sleep(_SETTLING)
        before, now = now, resident(live_tensors())
    return now


def most_gradients(group: dist.ProcessGroup, subject: str, scenario: Scenario) -> list[int]:
    """One rank's part: the peak bytes of gradients that autograd had made and the engine had not taken, by step."""
    model = model_for(load(subject), scenario, dist.get_rank(group))
    made, most = sizes_of_gradients(model), []
    with closing(wrap(model, load(subject), scenario, group)) as engine:
        for index in range(scenario.steps):
            made.clear()
            run_step(engine, scenario, index, dist.get_rank(group))
            most.append(max(made))
    return most


def sizes_of_gradients(model: nn.Module) -> list[int]:
    """A list that grows by the bytes of all gradients of the model each time that autograd has made another one.

    Call it before a subject takes the model, which may take a gradient in a hook of its own.
    """
    made: list[int] = []
    parameters = list(model.parameters())  # once: listing them in a backward is a use of them
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _: made.append(sum(p.grad.nbytes for p in parameters if p.grad is not None))
            )
    return made
