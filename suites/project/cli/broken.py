"""Subjects that fail in ways the command line must report and survive."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Batch, Offloaded, Outcome, State
from zerobench.subjects.reference import Reference
from zerobench.subjects.torch_ddp import TorchDdp


class Raises(Reference):
    """Cannot be built."""

    name = "raises"
    promises_bits = False

    def __init__(self, *args: object) -> None:
        raise ValueError("the flux is not aligned")


class Dies(Reference):
    """Rank 1 dies in its second step."""

    name = "dies"
    steps = 0

    def step(self) -> Outcome:
        """Die, or step."""
        self.steps += 1
        if self.steps == 2 and dist.get_rank(self.engine.ranks.group) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step()


class Stale(Reference):
    """On rank 1 the last rows of a value are off."""

    name = "stale"

    def parameters(self) -> State:
        """The parameters; on rank 1 the end of one is off."""
        values = super().parameters()
        if dist.get_rank(self.engine.ranks.group) == 1:
            values["blocks.1.up.weight"][-10:] += 1e-3
        return values


class SaysSkipped(Reference):
    """Says of each step that it was skipped."""

    name = "says-skipped"
    promises_bits = False

    def step(self) -> Outcome:
        """The outcome, but skipped."""
        return replace(super().step(), skipped=True)


class AdvancesNot(TorchDdp):
    """A step whose outcome nobody reads is left out."""

    name = "advances-not"

    def advance(self) -> None:
        """Begin the next step."""
        self.micro_steps = 0


class SendsNothingMetered(TorchDdp):
    """Every object but the first of a process leaves its gradients on their ranks, and so moves fewer bytes."""

    name = "sends-nothing-metered"
    made: ClassVar[int] = 0

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        SendsNothingMetered.made += 1
        self.first = SendsNothingMetered.made == 1

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        return super()._synchronizing(needed and self.first)


class Unreduced(Reference):
    """Returns a loss for each sample, not their mean."""

    name = "unreduced"

    def micro_step(self, batch: Batch) -> Tensor:
        """The loss twice."""
        return super().micro_step(batch).expand(2)


class Shards(Reference):
    """Returns a part, as a rank may own it, in place of each full value."""

    name = "shards"

    def parameters(self) -> State:
        """Half of each parameter, flat."""
        return {name: value.flatten()[: value.numel() // 2] for name, value in super().parameters().items()}


class Lopsided(Reference):
    """Only rank 0 keeps bytes in host memory; promises no bits."""

    name = "lopsided"
    promises_bits = False

    def offloaded(self) -> Offloaded:
        """The bytes that rank 0 keeps."""
        return Offloaded() if dist.get_rank(self.engine.ranks.group) else super().offloaded()


class Cycle(Reference):
    """Is freed only by the garbage collector."""

    name = "cycle"

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.itself = self
