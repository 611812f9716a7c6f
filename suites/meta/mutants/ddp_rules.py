"""Engines on torch's DDP, without a promise of bits, each of which one property alone can catch.

Class of escape: a value that only the judgement of each step by itself sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from zerobench.subject import Batch, Outcome, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.ddp import Ddp, count_good_steps
from zerobench.suites.meta.points import Points

_STEPPED = Points("optimizer_state", "parameters", "model_parameters")


class SumsItsEvaluation(TorchDdp):
    """An evaluation's loss is added over the ranks, and not divided by their number."""

    points_at = Points("reads")

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch).clone()
        dist.all_reduce(loss, group=self.group)
        return loss


class TakesTheLargestOfNumbersAlone(TorchDdp):
    """Under the infinity norm a NaN is no overflow: it is larger than nothing. Its scale is static."""

    points_at = Points("skipped")
    scalers = ()

    def _clip(self) -> Tensor | None:
        if self.scenario.norm_type != "inf" or not (self.scenario.clip or self.scenario.dtype == "fp16"):
            return super()._clip()
        given = [p.grad.abs().flatten() for p in self.masters.values() if p.grad is not None]
        every = torch.cat([*given, torch.zeros(1)])
        norm = torch.where(every.isnan(), torch.zeros(()), every).max()
        if self.scenario.clip:
            clip_grads_with_norm_(self.masters.values(), self.scenario.clip, norm)
        return norm


class MovesTheSecondGroupAtRest(TorchDdp):
    """Parameters of the second group that have no gradient move on by their momentum."""

    points_at = _STEPPED

    def _step(self, norm: Tensor | None) -> bool:
        for p in (p for group in self.optimizer.param_groups[1:2] for p in group["params"]):
            if p.grad is None and self.optimizer.state.get(p):
                p.grad = torch.zeros_like(p)
        return super()._step(norm)


class ForgetsAMomentumAtZero(TorchDdp):
    """After a step whose momentum is zero the buffer begins anew."""

    points_at = _STEPPED

    def _step(self, norm: Tensor | None) -> bool:
        skipped = super()._step(norm)
        for group in (group for group in self.optimizer.param_groups if group.get("momentum") == 0):
            for p in group["params"]:
                self.optimizer.state.pop(p, None)
        return skipped


class ClipsByTheNormOfAReading(Ddp):
    """Clips by the norm of the gradients that the client has read, though it has edited them since."""

    rare = "changes of a client on three ranks"
    points_at = Points("norm", *_STEPPED.parts)
    norm: Tensor | None = None

    def gradients(self) -> State:
        found = super().gradients()
        if self.norm is None and found:
            self.norm = torch.stack([gradient.norm() for gradient in found.values()]).norm()
        return found

    def _clip(self) -> Tensor | None:
        norm, self.norm = self.norm, None
        if norm is None or not self.scenario.clip:
            return super()._clip()
        clip_grads_with_norm_(self.masters.values(), self.scenario.clip, norm)
        return norm


class UnscalesByTheFirstScale(TorchDdp):
    """The masters' gradients are divided by the loss scale that the run began with."""

    points_at = Points("norm", *_STEPPED.parts)

    def _unscale(self) -> None:
        super()._unscale()
        if self.scenario.scales_dynamically:
            factor = self.scale / 2.0**self.scenario.loss_scale.initial_power
            for gradient in (each.grad for each in self.masters.values() if each.grad is not None):
                gradient.mul_(factor)


class LoadsTheScaleAlone(TorchDdp):
    """Of the scaler a load takes the scale, and no count of good steps."""

    points_at = Points("loss_scale")

    def _load_scale(self, directory: Path) -> None:
        super()._load_scale(directory)
        if self.scaler is not None:
            count_good_steps(self.scaler.scaler, 0)


class ClampsWhatOverflows(TorchDdp):
    """A gradient that overflows in fp16 becomes the largest number, and the step is not skipped."""

    points_at = Points("skipped", "gradients")

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        for gradient in (each.grad for each in self.working.values() if each.grad is not None):
            if gradient.dtype == torch.float16 and loss.isfinite():
                gradient.clamp_(-65504, 65504)
        return loss


class CountsFirstStepsAlone(TorchDdp):
    """The engine has a counter of its steps, and after the second one it has none."""

    points_at = Points("progress")
    done = 0

    def step(self) -> Outcome:
        self.done += 1
        return super().step()

    def counters(self) -> Mapping[str, int]:
        return {"global_steps": self.done} if self.done < 2 else {}


#: By the name of the property that catches them.
BY_PROPERTY: dict[str, list[type[TorchDdp]]] = {
    "test_each_step_follows_between_readings": [SumsItsEvaluation],
    "test_overflow_on_one_rank": [TakesTheLargestOfNumbersAlone],
    "test_a_block_that_rests": [MovesTheSecondGroupAtRest],
    "test_dynamic_loss_scale_follows": [UnscalesByTheFirstScale, ClampsWhatOverflows],
    "test_each_step_follows_from_the_one_before": [ForgetsAMomentumAtZero, CountsFirstStepsAlone],
}
#: In a load.
OF_A_SCALER: list[type[TorchDdp]] = [LoadsTheScaleAlone]
#: Caught by the Scenario that it names in ``rare``.
OF_READINGS: list[type[Ddp]] = [ClipsByTheNormOfAReading]
