"""Resuming: a subject saves its state, and a new one, or itself, goes on from there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch.distributed as dist

from zerobench.driver.building import model_for, wrap
from zerobench.driver.reading import evaluation, read_at
from zerobench.driver.stepping import run_step
from zerobench.scenario import Scenario
from zerobench.subject import State, Subject
from zerobench.workload.changes import edited
from zerobench.workload.client_values import client_state, given_back, saved_client_state


def resumed(subject: Subject, scenario: Scenario, group: dist.ProcessGroup, directory: Path, step: int) -> Subject:
    """A subject that has loaded the state of ``subject`` before a step: a new one, or itself. A collective.

    The client may set parameters just before the save, and not again after the load, and may have saved the state
    before it set them. It may move the directory for the load, and may save right after it, and load that.
    """
    if scenario.saves_before_edit(step):
        save(subject, scenario, directory, step)
    if scenario.edits_before_save(step):
        subject.set_parameters(edited(scenario, step))
    save(subject, scenario, directory, step)
    with _moved(directory, group) if scenario.moves_checkpoints else nullcontext(directory) as there:
        subject = _gone_back(subject, scenario, group, there, step)
        if scenario.saves_once_loaded:
            save_again(subject, scenario, group, there, step)
            subject = _gone_back(subject, scenario, group, there, step)
        return subject


def _gone_back(subject: Subject, scenario: Scenario, group: dist.ProcessGroup, directory: Path, step: int) -> Subject:
    """The subject itself, or a new one, once it has loaded the state that was saved."""
    if scenario.loads_into == "same":
        go_astray(subject, scenario, step, dist.get_rank(group))
        subject.load(as_client_names(directory, scenario))
        return subject
    subject.close()
    return loaded(type(subject), scenario, group, directory, step)


@contextmanager
def _moved(directory: Path, group: dist.ProcessGroup) -> Iterator[Path]:
    """The directory at another place, to which the client has moved it; it moves back afterwards. A collective."""
    there = directory.with_name(f"{directory.name}-moved")
    _rename(directory, there, group)
    yield there
    _rename(there, directory, group)


def _rename(directory: Path, there: Path, group: dist.ProcessGroup) -> None:
    dist.barrier(group)
    if dist.get_rank(group) == 0:
        directory.rename(there)
    dist.barrier(group)


def go_astray(subject: Subject, scenario: Scenario, step: int, rank: int) -> None:
    """Take step ``step`` on other data, as before a client goes back to a saved state. A collective.

    Overflows follow if the loss scale depends on them, and then the readings that follow the load, too; in Scenarios of
    an odd seed an evaluation comes last, which no other one need follow after the load.
    """
    other = scenario.but(seed=scenario.seed + 1, poison=())
    run_step(subject, other, step, rank)
    for _ in range(_overflows_astray(scenario, step)):
        run_step(subject, other.but(poison=((step, 0),)), step, rank)
    read_at(subject, scenario, step, 0)
    if scenario.seed % 2:
        evaluation(subject, scenario)


def _overflows_astray(scenario: Scenario, step: int) -> int:
    """The overflows before a load into an engine that has trained: more than one if a saved overflow would hide it.

    A second one uses up hysteresis alone: an engine may end at an overflow that finds its scale at the minimum.
    """
    if not scenario.scales_dynamically:
        return 0
    hides = scenario.loss_scale.hysteresis > 2 and bool(scenario.bad_steps & set(range(step)))
    return 2 if hides else 1


def save(subject: Subject, scenario: Scenario, directory: Path, step: int) -> None:
    """Save the state of a subject before a step, with a client's state if it keeps one. A collective."""
    if subject.keeps_client_state:
        before = subject.client_state if scenario.carries_client_state else {}
        subject.client_state = {**before, **client_state(scenario, step)}
    subject.save(as_client_names(directory, scenario))


def save_again(subject: Subject, scenario: Scenario, group: dist.ProcessGroup, directory: Path, step: int) -> None:
    """Save a loaded state to the directory that it comes from, once every rank has read it. A collective."""
    dist.barrier(group)
    save(subject, scenario, directory, step)


def as_client_names(directory: Path, scenario: Scenario) -> Path:
    """The directory as the client names it in this Scenario: absolutely, or relatively."""
    return Path(os.path.relpath(directory)) if scenario.names_directories_relatively else directory


def loaded(
    subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup, directory: Path, step: int
) -> Subject:
    """A new subject that has loaded the state of before a step. A collective.

    Its model starts from other values, so that a state that is not loaded shows.
    """
    other = model_for(subject_type, scenario.but(seed=scenario.seed + 1), dist.get_rank(group), loaded=True)
    following = wrap(other, subject_type, scenario, group)
    if scenario.loads_into == "trained":
        go_astray(following, scenario, step, dist.get_rank(group))
    following.load(as_client_names(directory, scenario))
    return following


def loaded_client_state(subject: Subject, scenario: Scenario, step: int) -> State:
    """The client's state that a load before a step gave back, by name; empty if the subject keeps none."""
    return given_back(saved_client_state(scenario, step), subject.client_state) if subject.keeps_client_state else {}


def shared_directory(group: dist.ProcessGroup) -> Path:
    """A temporary directory that rank 0 makes and every rank knows."""
    names = [tempfile.mkdtemp(prefix="zerobench-") if dist.get_rank(group) == 0 else ""]
    dist.broadcast_object_list(names, group_src=0, group=group)
    return Path(names[0])


@contextmanager
def directory_of(group: dist.ProcessGroup) -> Iterator[Path]:
    """A temporary directory that all ranks see; it goes when all have left it."""
    directory = shared_directory(group)
    yield directory
    dist.barrier(group)
    if dist.get_rank(group) == 0:
        shutil.rmtree(directory, ignore_errors=True)
