"""Bugs of the overflow check."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.optim.check import GradientCheck
from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.points import Points

_OVERFLOW = "test_overflow_moves_nothing"
#: Its scales overflow in single elements; a bad leaf does so in all gradients, and every owner sees it.
_SCALE = "test_dynamic_loss_scale"


class _DecidesAlone(Historical):
    """A rank skips the step if a gradient that it owns is not finite, whatever the others do."""

    points_at = Points("skipped")

    def sabotage(self) -> None:
        if self.applies():
            sums = self.engine.stepper._sums
            self.engine.stepper._sums = lambda: self.remember(sums())  # type: ignore[method-assign]
            self.patch_check(self.alone)

    def applies(self) -> bool:
        """Whether the Scenario has the bug."""
        raise NotImplementedError

    def remember(self, sums: Tensor) -> Tensor:
        self.mine_overflows = not bool(sums.isfinite().all())
        return sums

    def alone(self, check: GradientCheck) -> GradientCheck:
        if self.engine.stores.steps_on_host and self.mine_overflows:
            self.take_part()
        return dataclasses.replace(check, overflow=torch.tensor([self.mine_overflows]))

    def take_part(self) -> None:
        """Join the all-gathers of the ranks that step, so that they do not hang; the device's skipped steps do so."""
        stepper = self.engine.stepper
        works: list[Any] = [work for state in stepper.states for work in stepper._all_gather_updated(state)]
        for work in works:
            work.wait()


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7568",
    "deepspeedai/DeepSpeed#7580",
    story="In ZeRO-1 only the rank that owns a gradient sees its overflow; the others step.",
    by=_SCALE,
)
class SeesOverflowInItsPartitionOnly(_DecidesAlone):
    def applies(self) -> bool:
        return self.scenario.stage == 1


@happened_in(
    "torch FSDP1",
    "pytorch/pytorch#115710",
    story="The sharded grad scaler copies found_inf before its all-reduce has ended, so ranks decide differently.",
    by=_SCALE,
)
class CopiesTheDecisionTooEarly(_DecidesAlone):
    def applies(self) -> bool:
        return self.scenario.stage == 3


@happened_in(
    "Accelerate 1.14.0",
    "huggingface/accelerate#4242",
    story="With a fused optimizer a step that overflow has skipped is reported as applied.",
    by=_OVERFLOW,
)
class ReportsASkippedStepAsApplied(Historical):
    points_at = Points("skipped")

    def step(self) -> Outcome:
        return dataclasses.replace(super().step(), skipped=False)
