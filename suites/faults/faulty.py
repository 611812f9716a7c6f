"""The engine under test, which fails on rank 1 in the middle of a step."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor

from zerobench import subjects
from zerobench.driver import drive
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Subject


def killed() -> None:
    """The process is killed from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


def raises() -> None:
    """The client's own code raises."""
    raise ValueError("the data loader lost its place")


def hangs() -> None:
    """The process waits for something that does not come."""
    time.sleep(600)


Fault = Callable[[], None]


def train(group: dist.ProcessGroup, subject: str, scenario: Scenario, fault: Fault | None = None) -> Trajectory:
    """One rank's part of a Scenario; on rank 1 the fault comes before its second leaf."""
    chosen = subjects.load(subject)
    if fault is not None and dist.get_rank(group) == 1:
        chosen = _failing(chosen, fault)
    return drive(chosen, scenario, group)


def _failing(subject_type: type[Subject], fault: Fault) -> type[Subject]:
    leaves = itertools.count()

    def micro_step(self: Subject, batch: Batch) -> Tensor:
        if next(leaves) == 1:
            fault()
        return subject_type.micro_step(self, batch)

    return type(subject_type.__name__, (subject_type,), {"micro_step": micro_step})
