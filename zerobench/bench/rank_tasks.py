"""Live: what a rank does for the benchmark; its subjects stay alive from one task to the next.

Every function with a ``group`` is a task of a pool. A subject is known by its name and Scenario.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist

from zerobench import ConfigError
from zerobench.digests import bits, held
from zerobench.driver import Keep, model_for, run_step, to_cpu
from zerobench.errors import UsageError
from zerobench.machine.environment import environment
from zerobench.meters import (
    OffloadMeter,
    ParameterPeak,
    PeakMeter,
    PhaseMeter,
    TrafficMeter,
    crossing,
    pinned,
    resident,
)
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.recording import Memory, Offload, Split, Step, Traffic, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import State, Subject
from zerobench.subjects import load

Key = tuple[str, Scenario]
#: What to ask an oracle: who, about what, and (float64 only) which steps were skipped.
Question = tuple[Literal["canonical", "float64"], Scenario, tuple[bool, ...]]

_subjects: dict[Key, tuple[Subject, PhaseMeter]] = {}

#: The step that is metered: by then optimizer states exist and stage 3 knows the order of its units.
METERED_STEP = 2


def build(group: dist.ProcessGroup, key: Key) -> str | None:
    """Make a subject and keep it; where it does not offer the Scenario, say why instead."""
    name, scenario = key
    subject = load(name)
    reason = subject.unsupported(scenario)
    if reason is None:
        model = model_for(subject, scenario)
        with refusals(name):
            _subjects[key] = subject(model, scenario, group), PhaseMeter(model, scenario.device)
    return reason


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Within, a configuration that the engine of subject ``name`` refuses is the user's mistake: a UsageError."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(f"{name}: {error}") from error


def hush(group: dist.ProcessGroup) -> None:
    """Keep the garbage collector from walking through everything alive now while steps are timed."""
    gc.collect()
    gc.freeze()


def timed_step(group: dist.ProcessGroup, key: Key, index: int) -> tuple[Step, float, Split]:
    """Train step ``index``: what happened, and the seconds it took from when all ranks were ready, also by phase."""
    scenario, (subject, phases) = key[1], _subjects[key]
    _synchronize(scenario)
    dist.barrier(group)
    begin = time.perf_counter()
    phases.begin()
    step = run_step(subject, scenario, index, dist.get_rank(group), mark=phases.mark)
    _synchronize(scenario)
    return step, time.perf_counter() - begin, phases.split()


def finish(group: dist.ProcessGroup, key: Key, read: bool) -> State | None:
    """Read a subject's full parameters, where asked to, and close it; None on a rank that has the bits of rank 0.

    So a large model travels to the parent once, and not from every rank.
    """
    with closing(_subjects.pop(key)[0]) as subject:
        parameters = to_cpu(subject.parameters()) if read else {}
    del subject
    gc.unfreeze()
    gc.collect()  # a subject that is a cycle would stay on the device beside the oracles
    own = bits(parameters)
    first = [own]
    dist.broadcast_object_list(first, src=0, group=group)
    return None if dist.get_rank(group) and own == first[0] else parameters


def ask(group: dist.ProcessGroup, questions: Sequence[Question]) -> list[Trajectory]:
    """Answer the questions that fall to this rank: number r, r + world, ..."""
    return [answer(*question) for question in questions[dist.get_rank(group) :: dist.get_world_size(group)]]


def answer(oracle: str, scenario: Scenario, skipped: tuple[bool, ...]) -> Trajectory:
    """An oracle's recording with no states but the last step's parameters."""
    keep: Keep = frozenset({"parameters"})
    found = canonical(scenario, keep) if oracle == "canonical" else float64(scenario, keep, skipped=skipped)
    for step in found.steps[:-1]:
        step.parameters = {}
    return found


def meter(group: dist.ProcessGroup, key: Key) -> tuple[Memory, dict[str, Traffic], int | None, Offload, str | None]:
    """Bytes that a fresh subject holds, what it does in step :data:`METERED_STEP`, and a digest of what it then holds.

    Bytes on the wire, of all ranks together, are known where gloo carries them over loopback; only who promises bits
    has a digest. It leaves nothing behind.
    """
    subject_type, scenario = load(key[0]), key[1]
    rank, cuda = dist.get_rank(group), scenario.device == "cuda"
    pinned_before = pinned() if cuda else 0
    with PeakMeter(scenario.device) as peak:
        model = model_for(subject_type, scenario)
        with closing(subject_type(model, scenario, group)) as subject:
            for index in range(METERED_STEP):
                run_step(subject, scenario, index, rank)
            parameters = ParameterPeak(model)
            peak.restart()
            with crossing(group) as wire, OffloadMeter() as moved, TrafficMeter(parameters.observe) as traffic:
                run_step(subject, scenario, METERED_STEP, rank)
            states = subject.resident()
            sizes = {category: resident(tensors) for category, tensors in states.items()}
            digest = held(states) if subject_type.promises_bits else None
            offload = off_device(subject, moved)
            locked = pinned() - pinned_before if cuda else None
    memory = Memory(
        **sizes,
        peak=peak.bytes,
        peak_parameters=parameters.bytes if traffic.traffic else None,  # it is seen at collectives only
        host=_known(offload.host, "host" in scenario.elsewhere),
        file=_known(offload.files, "file" in scenario.elsewhere),
        pinned=locked,
        reserved=peak.reserved,
    )
    return memory, traffic.traffic, None if cuda else wire.bytes, offload, digest


def _known(kept: Mapping[str, int], expected: bool) -> int | None:
    """Bytes; 0 on a rank that keeps none where there might be some, None where there is no such place."""
    return sum(kept.values()) if kept or expected else None


def off_device(subject: Subject, moved: OffloadMeter) -> Offload:
    """What the subject keeps off the device, and what was moved."""
    kept = subject.offloaded()
    host = {name: size for name, tensors in kept.host.items() if (size := resident(tensors))}
    return Offload(host, {name: size for name, size in kept.files.items() if size}, dict(moved.bytes))


def surroundings(group: dist.ProcessGroup) -> dict[str, Any]:
    """The environment as a rank sees it: its number of threads, not the parent's; how many ranks it has to do with."""
    world = dist.get_world_size()
    return environment() | {"world": world, "backend": str(dist.get_backend_config())}


def _synchronize(scenario: Scenario) -> None:
    if scenario.device == "cuda":
        torch.cuda.synchronize()
