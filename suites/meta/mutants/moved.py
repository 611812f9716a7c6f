"""Engines that promise no bits, and do work in another call than the reference engine does.

A piece of work that is due once may come with the call that needs it first. It is a fault to do more, or less.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.subject import Batch, Outcome, Policies
from zerobench.subjects.reference import Reference
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

SHARDS = "shards"


class _Sending(Mutant):
    promises_bits = False
    points_at = Points("traffic", name="all_reduce")

    def send(self, elements: int = 8) -> None:
        dist.all_reduce(torch.ones(elements), group=self.group)


class RightIfItAgreesOnce(_Sending):
    """The ranks agree on the order of their modules in the second forward, whatever it is for."""

    forwards = 0

    def micro_step(self, batch: Batch) -> Tensor:
        self.agree()
        return super().micro_step(batch)

    def evaluate(self, batch: Batch) -> Tensor:
        self.agree()
        return super().evaluate(batch)

    def agree(self) -> None:
        self.forwards += 1
        if self.forwards == 2:
            self.send()


class RightIfItCatchesUp(_Sending):
    """What a step sends after its update comes with the next forward if there was no update."""

    owes = False

    def micro_step(self, batch: Batch) -> Tensor:
        if self.owes:
            self.send()
        self.owes = False
        return super().micro_step(batch)

    def step(self) -> Outcome:
        outcome = super().step()
        self.owes = outcome.skipped
        if not self.owes:
            self.send()
        return outcome


class AgreesAgainAfterAnEvaluation(RightIfItAgreesOnce):
    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        self.forwards = 1
        return loss


class AgreesInPartAfterAnEvaluation(RightIfItAgreesOnce):
    """The evaluation sends a half of that which the step does not send any more."""

    def evaluate(self, batch: Batch) -> Tensor:
        if self.forwards == 1:
            self.send(4)
        self.forwards += 1
        return super(RightIfItAgreesOnce, self).evaluate(batch)


class AgreesAgainAfterASave(RightIfItAgreesOnce):
    def save(self, directory: Path) -> None:
        super().save(directory)
        self.forwards = 1


class CatchesUpTwice(RightIfItCatchesUp):
    def micro_step(self, batch: Batch) -> Tensor:
        if self.owes:
            self.send()
        return super().micro_step(batch)


class ShardsWithASetting(Reference):
    """Keeps all gradients on each rank without its setting, and says so."""

    settings = (SHARDS,)
    policies = Policies(sharded_with=SHARDS)

    def resident(self) -> dict[str, Sequence[Tensor]]:
        kept = [] if SHARDS in self.scenario.settings else [torch.ones_like(p) for p in self.model.parameters()]
        found = super().resident()
        return found | {"gradients": [*found["gradients"], *kept]}


class ShardsNot(ShardsWithASetting):
    """Does not say so."""

    points_at = Points("resident", name="gradients")
    policies = Policies()
