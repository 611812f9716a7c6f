"""Subjects that fail in ways the command line must report and survive."""

from __future__ import annotations

import os
import signal

import torch.distributed as dist

from zerobench.subject import Outcome, State
from zerobench.subjects.reference import Reference


class Raises(Reference):
    """Cannot be built."""

    name = "raises"
    promises_bits = False

    def __init__(self, *args: object) -> None:
        raise ValueError("the flux is not aligned")


class Dies(Reference):
    """Loses rank 1 in its second step."""

    name = "dies"
    steps = 0

    def step(self) -> Outcome:
        """Die, or step."""
        self.steps += 1
        if self.steps == 2 and dist.get_rank(self.engine.ranks.group) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()


class Stale(Reference):
    """Answers with values on rank 1 whose last rows are off."""

    name = "stale"

    def parameters(self) -> State:
        """The parameters, but for the end of one."""
        values = super().parameters()
        if dist.get_rank(self.engine.ranks.group) == 1:
            values["blocks.1.up.weight"][-10:] += 1e-3
        return values
