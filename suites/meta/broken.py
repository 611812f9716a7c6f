"""An engine that cannot be built, and one that hangs."""

from __future__ import annotations

import time

import torch.distributed as dist
from torch import nn

from zerobench.errors import UsageError
from zerobench.scenario import Scenario
from zerobench.subject import Outcome
from zerobench.subjects.reference import Reference


class RaisesWhenBuilt(Reference):
    """Offers the reference engine's Scenarios. A UsageError leaves the ranks alive for the next test."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        raise UsageError("this engine cannot be built")


class HangsInItsSecondStep(Reference):
    """Rank 1 waits for an event that does not come."""

    def step(self) -> Outcome:
        if self.engine.global_steps == 1 and self.engine.ranks.rank == 1:
            time.sleep(600)
        return super().step()
