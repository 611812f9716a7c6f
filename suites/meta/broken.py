"""An engine that cannot be built."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from zerobench.errors import UsageError
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference


class RaisesWhenBuilt(Reference):
    """It offers what the reference engine offers. A UsageError leaves the ranks alive for the next test."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        raise UsageError("this engine cannot be built")
