"""Loads: the tasks of a rank that look at the random numbers after a load, and at a load of a damaged state."""

from __future__ import annotations

import gc
import random
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zerobench import subjects
from zerobench.driver import (
    ALL,
    Keep,
    directory_of,
    draw_batches,
    evaluation,
    go_astray,
    loaded,
    prepare,
    run_step,
    save,
    start,
    to_cpu,
)
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import State, Subject
from zerobench.workload.data import seed_leaf

#: The change of a file: it is gone, its second half is, or a byte in its middle is another one.
Damage = Literal["missing", "cut", "flipped"]


def numbers_lost(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[str]:
    """One rank's part: the generators that do not go on, after a load, from where they were when the state was saved.

    Each rank has numbers of its own, as the data loaders of a job have.
    """
    rank, subject_type = dist.get_rank(group), subjects.load(name)
    subject = start(subject_type, scenario, group)
    with directory_of(group) as directory:
        try:
            run_step(subject, scenario, 0, rank)
            _seed(scenario.seed * scenario.world + rank)
            save(subject, scenario, directory, 1)
            expected = _drawn(scenario.device)
            if scenario.loads_into == "same":
                go_astray(subject, scenario, 1, rank)
                subject.load(directory)
            else:
                subject.close()
                subject = loaded(subject_type, scenario, group, directory, 1)
            got = _drawn(scenario.device)
        finally:
            subject.close()
    return [f"{generator}, after a load" for generator, numbers in expected.items() if got[generator] != numbers]


def _seed(seed: int) -> None:
    """Seed each generator, and draw one normal number: it keeps another one, of the same pair, for the next call."""
    torch.manual_seed(seed)  # the device's as well
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator
    _normal()


def _normal() -> dict[str, object]:
    return {
        "torch's normal numbers": torch.randn(()).item(),
        "Python's normal numbers": random.gauss(),
        "numpy's normal numbers": np.random.standard_normal(),  # noqa: NPY002 - the global generator
    }


def _drawn(device: str) -> dict[str, object]:
    """The next numbers of each generator that a client may use."""
    return _normal() | {
        "torch's random numbers": torch.rand(3).tolist(),
        "the device's random numbers": torch.rand(3, device=device).tolist(),
        "Python's random numbers": random.random(),  # noqa: S311 - no secret
        "numpy's random numbers": np.random.rand(),  # noqa: NPY002 - the global generator
    }


@dataclass
class FailedLoad:
    """A run over a load that fails: the recording, and the descriptors that the load has left open. No recording if the
    load succeeds: the damage is in bytes that it does not need."""

    run: Trajectory | None = None
    descriptors: int = 0


def train_over_a_failed_load(
    group: dist.ProcessGroup, name: str, scenario: Scenario, moments: tuple[int, int], damage: Damage, which: int
) -> FailedLoad:
    """One rank's part: save before a step, try to load the damaged state before another one, and train on."""
    (saves, fails), rank, steps, found = moments, dist.get_rank(group), list[Step](), FailedLoad()
    with closing(start(subjects.load(name), scenario, group)) as subject, directory_of(group) as directory:
        for index in range(scenario.steps):
            if index == saves:
                save(subject, scenario, directory, saves)
            if index == fails:
                spoil(group, directory, damage, which)
                before = _descriptors()
                if not load_fails(subject, directory, group):
                    return found
                found.descriptors = _descriptors() - before
            kept: Keep = ALL if index == scenario.steps - 1 else frozenset()
            steps.append(run_step(subject, scenario, index, rank, kept))
    found.run = Trajectory(name, scenario, rank, steps)
    return found


def train_over_a_load_of_a_part(
    group: dist.ProcessGroup, name: str, scenario: Scenario, moments: tuple[int, int], edits: bool
) -> Trajectory:
    """One rank's part: save before a step, and before a later one load the Scenario's part of the state into the same
    engine; or, with ``edits``, set the parameters to their values at the save. The recording begins at that step."""
    (saves, loads), rank, steps = moments, dist.get_rank(group), list[Step]()
    with closing(start(subjects.load(name), scenario, group)) as subject, directory_of(group) as directory:
        values: State = {}
        for index in range(scenario.steps):
            if index == saves:
                values = to_cpu(subject.parameters())
                save(subject, scenario, directory, saves)
            if index == loads:
                subject.set_parameters(values) if edits else subject.load(directory)
                steps.clear()
            kept: Keep = ALL if index >= loads else frozenset()
            steps.append(run_step(subject, scenario, index, rank, kept))
    return Trajectory(name, scenario, rank, steps)


def evaluated_and_saved(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path) -> Tensor:
    """One rank's part: train the Scenario and save; the loss of the held-out batch, with the rank's own buffers."""
    with closing(start(subjects.load(name), scenario, group)) as subject:
        for index in range(scenario.steps):
            run_step(subject, scenario, index, dist.get_rank(group))
        save(subject, scenario, directory, scenario.steps)
        return evaluation(subject, scenario)


def loaded_and_evaluated(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path) -> Tensor:
    """One rank's part: the same loss of an engine that has loaded what these ranks, or others, have saved."""
    with closing(loaded(subjects.load(name), scenario, group, directory, scenario.steps)) as subject:
        return evaluation(subject, scenario)


def train_and_return(
    group: dist.ProcessGroup, name: str, scenario: Scenario, saves: tuple[int, ...], begun: int, tags: bool
) -> tuple[Trajectory, Trajectory, list[str]]:
    """One rank's part: save before some steps, train to the end, begin a further step of ``begun`` micro-steps at most,
    and load the oldest of the states; the recordings of the steps after its save, and after the load, and the files
    that calls should have left. The client has a file of its own in the directory.

    With ``tags`` all are in one directory, and the engine trains on from the newer ones, too, after the oldest; then
    from the oldest again, which neither the load nor the steps after it may have changed.
    """
    rank, steps, again, lost = dist.get_rank(group), list[Step](), list[Step](), list[str]()
    with (
        closing(start(subjects.load(name), scenario, group)) as subject,
        directory_of(group) as first,
        directory_of(group) as second,
    ):
        _files(first, group, "of the client")
        for index in range(scenario.steps):
            if index in saves:
                subject.tag = str(index) if tags else ""
                save(subject, scenario, first if tags or index == saves[0] else second, index)
            steps.append(run_step(subject, scenario, index, rank, ALL))
        _begin(subject, scenario, rank, begun)
        returns = (*saves, saves[0]) if tags else saves[:1]
        if "of the client" not in _files(first, group):
            lost.append("a file of the client in the directory, by save")
        for back in returns:
            subject.tag = str(back) if tags else ""
            files = _files(first, group)
            subject.load(first)
            if _files(first, group) != files:
                lost.append("the files of the saved state, by load")
            again += [run_step(subject, scenario, index, rank, ALL) for index in range(back, scenario.steps)]
    expected = [step for back in returns for step in steps[back:]]
    return Trajectory(name, scenario, rank, expected), Trajectory(name, scenario, rank, again), lost


def _files(directory: Path, group: dist.ProcessGroup, new: str = "") -> dict[str, int]:
    """The files of a directory and their sizes, while no rank changes any; before it the first rank may make one."""
    if new and dist.get_rank(group) == 0:
        (directory / new).write_text("a note")
    dist.barrier(group)
    found = {str(each.relative_to(directory)): each.stat().st_size for each in directory.rglob("*") if each.is_file()}
    dist.barrier(group)
    return found


def _begin(subject: Subject, scenario: Scenario, rank: int, micro_steps: int) -> None:
    """Begin a step on other data, and do not end it."""
    last = scenario.steps - 1
    other = scenario.but(seed=scenario.seed + 1, poison=(), edits=())
    batches = draw_batches(other, last, rank)[:-1][:micro_steps]
    if not batches:
        return
    prepare(subject, other, last)
    for micro_step, batch in enumerate(batches):
        seed_leaf(other, last, micro_step * scenario.world + rank)
        subject.micro_step(batch)


def load_fails(subject: Subject, directory: Path, group: dist.ProcessGroup) -> bool:
    """Whether a load raises, whatever the engine raises; on some ranks alone it must not."""
    fails = True
    with suppress(Exception):
        subject.load(directory)
        fails = False
    found = [fails] * dist.get_world_size(group)
    dist.all_gather_object(found, fails, group)
    if len(set(found)) > 1:
        raise RuntimeError(f"load() raises on ranks {[rank for rank, each in enumerate(found) if each]} alone")
    return fails


def _descriptors() -> int:
    """The open descriptors of this process, once nothing waits for the collector of reference cycles."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def spoil(group: dist.ProcessGroup, directory: Path, damage: Damage, which: int) -> None:
    """Rank 0 changes one of the files, after all ranks have saved and before one loads."""
    dist.barrier(group)
    if dist.get_rank(group) == 0:
        files = sorted(each for each in directory.rglob("*") if each.is_file())
        _change(files[which % len(files)], damage)
    dist.barrier(group)


def _change(file: Path, damage: Damage) -> None:
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[:middle])
    else:
        content[middle] ^= 255
        file.write_bytes(content)
