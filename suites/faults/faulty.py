"""Engines that fail on rank 1 in the middle of a step, and ranks that do not match."""

from __future__ import annotations

import os
import signal
import time

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Batch
from zerobench.subjects.reference import Reference


class Faulty(Reference):
    """Calls :meth:`fail` on rank 1 at its second leaf."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.faulty, self.leaf = dist.get_rank(group) == 1, 0

    def micro_step(self, batch: Batch) -> Tensor:
        self.leaf += 1
        if self.faulty and self.leaf == 2:
            self.fail()
        return super().micro_step(batch)

    def fail(self) -> None:
        """What goes wrong."""


class Killed(Faulty):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Raises(Faulty):
    def fail(self) -> None:
        raise ValueError("the data loader lost its place")


class Hangs(Faulty):
    def fail(self) -> None:
        time.sleep(600)


class OtherConfig(Reference):
    """Rank 1 is configured with another clipping value."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario.but(clip=0.5) if dist.get_rank(group) == 1 else scenario, group)


class OtherModel(Reference):
    """Rank 1's model has one parameter frozen that trains on the others."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        if dist.get_rank(group) == 1:
            next(model.parameters()).requires_grad_(False)
        super().__init__(model, scenario, group)
