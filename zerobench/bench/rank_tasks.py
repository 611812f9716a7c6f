"""The tasks of a rank in a benchmark: a subject for each case, alive from one task to the next.

Every function with a ``group`` is a task of a pool.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist

from zerobench.digests import bits, held
from zerobench.driver import draw_batches, model_for, run_step, run_steps, to_cpu, wrap
from zerobench.errors import UsageError
from zerobench.meters import Metered, PhaseMeter, meter_subject
from zerobench.ranks import preload
from zerobench.recording import Split, Step
from zerobench.results.identity import Case
from zerobench.scenario import Scenario
from zerobench.subject import State, Subject
from zerobench.subjects import load
from zerobench.workload import models

_subjects: dict[Case, tuple[Subject, PhaseMeter]] = {}

preload(__name__, "zerobench.oracles.questions")  # the modules that the ranks of a benchmark use


def build(group: dist.ProcessGroup, case: Case) -> str | None:
    """Make a subject and keep it; if it does not offer the Scenario, return the reason."""
    subject = load(case.subject)
    if case.scenario.resumes:
        raise UsageError("a Scenario with resumes is trained and judged, not measured; leave out resumes")
    reason = subject.not_offered(case.scenario)
    if reason is None:
        with _drawn_once(case.scenario):
            model = model_for(subject, case.scenario, dist.get_rank(group))
        with refusals(case.subject):
            made = wrap(model, subject, case.scenario, group)
        _subjects[case] = made, PhaseMeter(model, case.scenario.device)
    return reason


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Inside, raise a UsageError if the engine of subject ``name`` refuses a configuration: the user must change it."""
    try:
        yield
    except ValueError as error:
        from zerobench import ConfigError  # only now: an automatic mutant of the engine comes before its first import

        if isinstance(error, ConfigError):
            raise UsageError(f"{name}: {error}") from error
        raise


def hush(group: dist.ProcessGroup) -> None:
    """Keep the garbage collector from visiting the present objects while steps are timed."""
    gc.collect()
    gc.freeze()


def timed_step(group: dist.ProcessGroup, case: Case, index: int) -> tuple[Step, float, Split]:
    """Train step ``index``; returns the step and, from when all ranks were ready, its seconds in total and by phase."""
    subject, phases = _subjects[case]
    rank = dist.get_rank(group)
    batches = draw_batches(case.scenario, index, rank)  # drawing is no part of the step
    _synchronize(case.scenario)
    dist.barrier(group)
    begin = time.perf_counter()
    phases.begin()
    step = run_step(subject, case.scenario, index, rank, mark=phases.mark, batches=batches)
    _synchronize(case.scenario)
    return step, time.perf_counter() - begin, phases.split()


def read(group: dist.ProcessGroup, case: Case) -> State | None:
    """Read a subject's full parameters; None if this rank has the bits of rank 0.

    So a large model travels to the parent once, and not from every rank.
    """
    parameters = to_cpu(_subjects[case][0].parameters())
    if dist.get_world_size(group) == 1:
        return parameters
    own = bits(parameters)
    first = [own]
    dist.broadcast_object_list(first, src=0, group=group)
    return None if dist.get_rank(group) and own == first[0] else parameters


def run_ahead(group: dist.ProcessGroup, case: Case, first: int, steps: int, demand: bool = False) -> float:
    """Train ``steps`` steps in one fence, from step ``first`` on: the host does not wait for the device between them.

    Returns the seconds of a step, on average. It can ``demand`` that the steps change what the subject holds.
    """
    subject, _ = _subjects[case]
    rank = dist.get_rank(group)
    batches = [draw_batches(case.scenario, first + index, rank) for index in range(steps)]
    before = _held(subject) if demand else ""
    _synchronize(case.scenario)
    dist.barrier(group)
    begin = time.perf_counter()
    run_steps(subject, case.scenario, first, rank, batches)
    _synchronize(case.scenario)
    seconds = (time.perf_counter() - begin) / steps
    if demand and before and _held(subject) == before:
        raise RuntimeError(f"{case.subject} took {steps} steps by advance(), and no value that it holds has changed")
    return seconds


def _held(subject: Subject) -> str:
    """The digest of the parameters and optimizer states on the device; empty if there are none."""
    kept = {name: tensors for name, tensors in subject.resident().items() if name != "gradients" and tensors}
    return held(kept) if kept else ""


def close(group: dist.ProcessGroup, case: Case) -> None:
    """Close a subject."""
    _subjects.pop(case)[0].close()
    gc.unfreeze()
    gc.collect()  # otherwise a subject in a cycle would stay on the device beside the oracles


def meter(group: dist.ProcessGroup, case: Case, digests: bool = True) -> Metered:
    """Meter a fresh subject; see :func:`zerobench.meters.meter_subject`."""
    with _drawn_once(case.scenario):
        return meter_subject(load(case.subject), case.scenario, group, digests=digests)


def _drawn_once(scenario: Scenario) -> AbstractContextManager[None]:
    """On a GPU, where models are large and the host's memory is no measurement, draw the weights of several subjects
    once."""
    return models.drawn_once() if scenario.device == "cuda" else nullcontext()


def _synchronize(scenario: Scenario) -> None:
    if scenario.device == "cuda":
        torch.cuda.synchronize()
