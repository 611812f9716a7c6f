"""The client's own code: the tasks of a rank whose client trains in threads, catches errors, or sets hooks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench import subjects
from zerobench.driver import ALL, Keep, Run, draw_batches, drive, model_for, run_step, wrap
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Subject

#: Where the client's code raises: before the model's first module has run, after its last one, or at the end of a
#: backward.
Place = Literal["first", "last", "backward"]


def train_in_threads(group: dist.ProcessGroup, name: str, scenario: Scenario) -> Trajectory:
    """One rank's part: build the engine in this thread, and train each step in a thread of its own."""
    with closing(Run(subjects.load(name), scenario, group, last=ALL)) as run:
        more = True
        while more:
            with ThreadPoolExecutor(1) as thread:
                more = thread.submit(run.step).result()
        return run.recording()


@dataclass(frozen=True)
class Failing:
    """A failure: its place, and the leaf of the run before which the client tries another one that fails."""

    place: Place
    leaf: int


def train_over_a_failure(
    group: dist.ProcessGroup, name: str, scenario: Scenario, failing: Failing
) -> Trajectory | None:
    """One rank's part: before a leaf the client tries one that raises on all ranks, leaves it out and trains on; None
    if the engine refuses to go on after a backward."""
    try:
        return drive(_failing(subjects.load(name), failing), scenario, group, last=ALL)
    except _RefusedError:
        return None


class _ClientError(Exception):
    """Raised by the client's code within a backward."""


class _RefusedError(Exception):
    """The engine refuses a micro-step after one that has raised."""


def _failing(kind: type[Subject], failing: Failing) -> type[Subject]:
    leaves = itertools.count()

    def micro_step(self: Subject, batch: Batch) -> Tensor:
        now = next(leaves)
        if now == failing.leaf:
            numbers = torch.get_rng_state()
            _fail(lambda: kind.micro_step(self, _broken(batch, failing.place)))
            torch.set_rng_state(numbers)
        if now != failing.leaf or failing.place != "backward":
            return kind.micro_step(self, batch)
        try:
            return kind.micro_step(self, batch)
        except Exception as error:
            raise _RefusedError from error

    return type(kind.__name__, (kind,), {"micro_step": micro_step})


def _fail(make: Callable[[], object]) -> None:
    try:
        make()
    except Exception:  # noqa: BLE001 - the client catches all
        return
    raise AssertionError("a micro-step of a broken batch does not raise")


def _broken(batch: Batch, place: Place) -> Batch:
    """The batch without its input or its target, or with an input whose gradient raises."""
    if place != "backward":
        return {**batch, "x" if place == "first" else "y": None}
    x = batch["x"].clone().requires_grad_()
    x.register_hook(_raise)
    return {**batch, "x": x}


def _raise(gradient: Tensor) -> None:
    raise _ClientError("the client's hook")


def train_with_halves(group: dist.ProcessGroup, name: str, scenario: Scenario, hooks: bool) -> Trajectory:
    """One rank's part: train with halves of all gradients, by a hook of the client on each trained parameter or by
    halves of the losses."""
    rank, kind, steps = dist.get_rank(group), subjects.load(name), list[Step]()
    model = model_for(kind, scenario, rank)
    for parameter in (each for each in model.parameters() if each.requires_grad and hooks):
        parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    factor = 1.0 if hooks else 0.5
    with closing(wrap(model, kind, scenario, group)) as subject:
        for index in range(scenario.steps):
            batches = [
                {**batch, "scale": batch.get("scale", 1.0) * factor} for batch in draw_batches(scenario, index, rank)
            ]
            kept: Keep = ALL if index == scenario.steps - 1 else frozenset()
            steps.append(run_step(subject, scenario, index, rank, kept, batches=batches))
    return Trajectory(name, scenario, rank, steps)
