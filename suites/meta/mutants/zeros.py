"""Engines that go wrong if a leaf or a whole step has a gradient of zero.

Class of escape: a gradient of zero. Each is right while every leaf has a gradient.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.optim.check import GradientCheck
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class DividesByANormOfZero(Mutant):
    points_at = Points("norm")

    def sabotage(self) -> None:
        self.patch_check(_divided)


def _divided(check: GradientCheck) -> GradientCheck:
    return dataclasses.replace(check, total=check.total / (check.total > 0))


class SkipsAStepOfZeros(Mutant):
    points_at = Points("skipped")

    def sabotage(self) -> None:
        self.patch_check(lambda check: dataclasses.replace(check, overflow=check.overflow | (check.total == 0)))


class TakesZeroForNoGradient(Mutant):
    """Neither decay nor momentum moves the parameters of a step of zeros."""

    points_at = Points("optimizer_state", "parameters", "model_parameters", "reads")

    def sabotage(self) -> None:
        self.patch_check(lambda check: dataclasses.replace(check, active=check.active & (check.total != 0)))


class AveragesOverLeavesWithALoss(Mutant):
    """Divides the sum by the number of leaves whose loss is not zero."""

    points_at: ClassVar[Points] = Points("gradients", "norm")
    without = 0

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: max(1, leaves - self.without))

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        here = torch.tensor(int(loss == 0))
        dist.all_reduce(here, group=self.group)
        self.without += int(here)
        return loss

    def step(self) -> Outcome:
        outcome = super().step()
        self.without = 0
        return outcome


ZEROS: list[type[Mutant]] = [
    DividesByANormOfZero,
    SkipsAStepOfZeros,
    TakesZeroForNoGradient,
    AveragesOverLeavesWithALoss,
]
