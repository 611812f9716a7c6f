"""Bugs of torch DDP and of its clients, in torch DDP itself: it promises no bits, so each of its steps is followed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.historical.bug import happened_in
from zerobench.suites.meta.points import Points

_FOLLOWS = "test_each_step_follows_from_the_one_before"
_GRADIENTS = Points("gradients")


class _Counts(TorchDdp):
    """Counts its steps."""

    points_at: ClassVar[Points] = _GRADIENTS

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.steps = 0
        super().__init__(model, scenario, group)

    def step(self) -> Outcome:
        self.steps += 1
        return super().step()


@happened_in(
    "torch DDP, until 2026",
    "pytorch/pytorch#187732",
    "huggingface/accelerate#3679",
    story="With static_graph and no_sync the gradients are not reduced from the second step on.",
    by=_FOLLOWS,
)
class StopsReducingAfterTheFirstStep(_Counts):
    #: Only the rank with the overflow skips its step.
    points_at = Points("gradients", "skipped")

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        return super()._synchronizing(needed and (self.steps == 0 or self.scenario.accumulation == 1))


@happened_in(
    "torch DDP (communication hook), 2020",
    "pytorch/pytorch#43307",
    story="After a communication hook a bucket has views of another tensor, so later gradients never get into it.",
    by=_FOLLOWS,
)
class ReducesTheFirstGradientsAgain(_Counts):
    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        if self.micro_steps == self.boundary:
            kept = vars(self).setdefault("kept", {})
            for name, p in self.working.items():
                if p.grad is not None:
                    p.grad.copy_(kept.setdefault(name, p.grad.clone()))
        return loss


@happened_in(
    "lingua, and clients of Accelerate",
    "facebookresearch/lingua#59",
    "huggingface/accelerate#641",
    story="Gradients are clipped in every micro-step, not only before the optimizer steps.",
    by=_FOLLOWS,
)
class ClipsInEveryMicroStep(TorchDdp):
    points_at: ClassVar[Points] = _GRADIENTS

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        if self.scenario.clip and self.micro_steps < self.boundary:
            torch.nn.utils.clip_grad_norm_(self.working.values(), self.scenario.clip * self.scale)
        return loss
