"""Bugs of the grad norm and of clipping."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from unittest import mock

from torch import Tensor

from zerobench.engine import gradients
from zerobench.engine.optim.check import GradientCheck
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.mutants.plain import packed_with_gaps
from zerobench.suites.meta.points import Points
from zerobench.suites.support.padding import NanPadding

_NORM = Points("norm")
_UPDATE = Points("optimizer_state", "parameters")


class _ScalesTheNorm(Historical):
    """The norm is too large by a factor."""

    points_at = _NORM

    def sabotage(self) -> None:
        self.patch_check(self.scaled)

    def scaled(self, check: GradientCheck) -> GradientCheck:
        return dataclasses.replace(check, total=check.total * self.factor() ** 2)

    def factor(self) -> float:
        """The factor in this Scenario."""
        raise NotImplementedError


@happened_in(
    "torch FSDP1",
    "pytorch/pytorch#88955",
    story="With NO_SHARD clip_grad_norm_ counts each gradient once for each rank.",
)
class CountsEveryRanksCopy(_ScalesTheNorm):
    def factor(self) -> float:
        return math.sqrt(self.scenario.world) if self.scenario.stage == 0 else 1.0


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#551",
    story="Without model parallelism ZeRO adds the norm over all ranks, which all have the whole norm.",
)
class AddsTheNormOverAllRanks(_ScalesTheNorm):
    def factor(self) -> float:
        return math.sqrt(self.scenario.world) if self.scenario.stage in (1, 2) else 1.0


@happened_in(
    "torchtitan",
    "pytorch/torchtitan#2318",
    story="DDP and hybrid sharding report a grad norm that is larger by the number of replicas.",
)
class ReportsTheNormOfTheSum(_ScalesTheNorm):
    def factor(self) -> float:
        return float(self.scenario.world)


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#5461",
    "deepspeedai/DeepSpeed#5493",
    story="A faster norm does not see gradients that are offloaded.",
)
class MissesOffloadedGradients(_ScalesTheNorm):
    def factor(self) -> float:
        return 0.0 if self.offloads else 1.0


@happened_in(
    "fairscale FSDP",
    "facebookresearch/fairscale#1092",
    story="clip_grad_norm_ rounds each rank's norm to the dtype of the parameters before the ranks add them.",
)
class RoundsPartialNormsToBf16(Historical):
    points_at = _NORM

    def sabotage(self) -> None:
        sums = self.engine.stepper._sums
        if self.scenario.dtype == "bf16":
            self.engine.stepper._sums = lambda: sums().bfloat16().double()  # type: ignore[method-assign]


@happened_in(
    "DeepSpeed, 2023-04 to 2023-06",
    "deepspeedai/DeepSpeed#3166",
    "deepspeedai/DeepSpeed#3790",
    story="ZeRO-1 and 2 neither unscale nor clip gradients in bf16.",
)
class NeverClipsInBf16(Historical):
    points_at = _UPDATE

    def sabotage(self) -> None:
        if self.scenario.dtype == "bf16" and self.scenario.stage in (1, 2):
            self.engine.config = self.engine.config.model_copy(update={"gradient_clipping": 0.0})


class _ScalesTheUpdate(Historical):
    """The gradients of an update are too small by a factor."""

    points_at = _UPDATE

    def sabotage(self) -> None:
        step = self.engine.stepper.step
        self.engine.stepper.step = lambda check, factors: step(check, factors * self.factor())  # type: ignore[method-assign]

    def factor(self) -> float:
        """The factor in this Scenario."""
        raise NotImplementedError


@happened_in(
    "apex DistributedFusedAdam",
    "NVIDIA/apex#1512",
    story="Clipping takes scaled gradients for unscaled ones, and divides by the loss scale once more.",
)
class UnscalesAgainIfItClips(_ScalesTheUpdate):
    def factor(self) -> float:
        scaled = self.scenario.dtype == "fp16" and self.scenario.clip
        return 1 / self.engine.loss_scale if scaled else 1.0


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7839",
    "deepspeedai/DeepSpeed#7837",
    story="In bf16 without ZeRO gradients are divided by the initial scale, by which no loss was multiplied.",
)
class UnscalesWhatWasNotScaled(_ScalesTheUpdate):
    def factor(self) -> float:
        return 2.0**-16 if self.scenario.dtype == "bf16" and self.scenario.stage == 0 else 1.0


@happened_in(
    "DeepSpeed before 2023",
    "deepspeedai/DeepSpeed#2695",
    "deepspeedai/DeepSpeed#2686",
    story="The norm is divided by the loss scale of the next step.",
    by="test_dynamic_loss_scale",
)
class DividesTheNormByTheNextScale(Historical):
    points_at = _NORM

    def step(self) -> Outcome:
        outcome = super().step()
        assert outcome.norm is not None
        return dataclasses.replace(outcome, norm=outcome.norm * (outcome.loss_scale / self.engine.loss_scale))


@happened_in(
    "DeepSpeed before 2025",
    "deepspeedai/DeepSpeed#6974",
    "deepspeedai/DeepSpeed#6918",
    story="Padding is taken for the last rank's alone, but a small group has padding on several ranks.",
)
class ClearsThePaddingOfTheLastRankOnly(NanPadding, Historical):
    points_at = (_NORM, Points("skipped"))

    def micro_step(self, batch: Batch) -> Tensor:
        with mock.patch.object(gradients, "pack", self.packed):
            return super().micro_step(batch)

    def packed(self, flat: Tensor, tensors: Sequence[Tensor], starts: Sequence[int]) -> None:
        """pack, but of the gaps between the tensors only those of the last rank's shard become zero."""
        flat[flat.numel() // self.group.size() * (self.group.size() - 1) :].zero_()
        packed_with_gaps(flat, tensors, starts)
