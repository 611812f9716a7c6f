"""Bugs of the weights that a forward uses, of buffers and of the loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.state.unit import UnitState
from zerobench.subject import Batch
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.points import Points

_FORWARD = Points("losses", "gradients", "model_parameters", "reads")


@happened_in(
    "DeepSpeed, fairscale FSDP",
    "deepspeedai/DeepSpeed#8066",
    "facebookresearch/fairscale#442",
    story="Buffers are cast to the dtype of the parameters, and lose bits in every update.",
)
class CastsBuffers(Historical):
    points_at = _FORWARD

    def sabotage(self) -> None:
        for buffer in self.model.buffers():
            buffer.data = buffer.data.to(self.engine.config.dtype)


class _ChangesGathered(Historical):
    """Changes a sharded unit when it has arrived."""

    points_at = _FORWARD

    def sabotage(self) -> None:
        unsharder = self.engine.unsharder
        if unsharder is None:
            return
        arrive = unsharder._arrive

        def arriving(state: UnitState) -> None:
            comes = state in unsharder._arriving
            arrive(state)
            if comes and state.resident:
                self.change(state)

        unsharder._arrive = arriving  # type: ignore[method-assign]

    def change(self, state: UnitState) -> None:
        """Change the whole unit."""
        raise NotImplementedError


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7775",
    "deepspeedai/DeepSpeed#8215",
    story="Stage 3 dequantizes weights as fp16, also if they are bf16.",
)
class ReadsBf16AsFp16(_ChangesGathered):
    def change(self, state: UnitState) -> None:
        if state.dtype is torch.bfloat16:
            state.full.copy_(state.full.view(torch.float16).bfloat16())


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#8158",
    story="If stage 3 fetches by all-reduce, the parameters after a padded one begin at a wrong offset.",
)
class ShiftsWhatFollowsPadding(_ChangesGathered):
    def change(self, state: UnitState) -> None:
        one, *others = state.unit.slots
        if others and one.numel % self.scenario.world:
            rest = state.full[others[0].start : state.unit.length]
            rest.copy_(rest.roll(1))


@happened_in(
    "Megatron Core",
    "NVIDIA/Megatron-LM#950",
    story="If a forward reaches a bucket before its turn, overlap-param-gather leaves it the previous step's weights.",
)
class GathersTheLastUnitAStepLate(Historical):
    points_at = _FORWARD

    def sabotage(self) -> None:
        self.sent: Tensor | None = None
        gather = self.engine.stepper._all_gather_updated
        last = self.engine.stepper.states[-1]

        def late(state: UnitState) -> list[Any]:
            works = gather(state)
            if state is last and works:
                for work in works:
                    work.wait()
                new, old = state.full.clone(), self.sent
                state.full.copy_(new if old is None else old)
                state.full[state.own] = new[state.own]
                self.sent = new
                return []
            return works

        self.engine.stepper._all_gather_updated = late  # type: ignore[method-assign]


@happened_in(
    "torch FSDP1",
    "pytorch/pytorch#106858",
    "pytorch/pytorch#105346",
    story="After an evaluation the gathered weights stay in memory, and later forwards use them without a new gather.",
)
class StaysStaleAfterAnEvaluation(Historical):
    points_at = _FORWARD

    def sabotage(self) -> None:
        self.reshard = None if self.engine.unsharder is None else self.engine.unsharder.reshard_all

    def evaluate(self, batch: Batch) -> Tensor:
        unsharder = self.engine.unsharder
        if unsharder is not None:
            unsharder.max_live = 10**9
            unsharder.reshard_all = lambda: None  # type: ignore[method-assign]
        return super().evaluate(batch)


@happened_in(
    "fairscale ShardedDDP",
    "facebookresearch/fairscale#1041",
    "facebookresearch/fairscale#1049",
    story="Rank 0's buffers replace the other ranks' in each micro-step of an accumulation.",
)
class BroadcastsBuffersWhileItAccumulates(Historical):
    points_at = (_FORWARD, Points("norm"))

    def micro_step(self, batch: Batch) -> Tensor:
        if self.scenario.accumulation > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, dist.get_global_rank(self.group, 0), group=self.group)
        return super().micro_step(batch)


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#150",
    "deepspeedai/DeepSpeed#1107",
    story="backward() returns the loss multiplied by the loss scale.",
)
class ReturnsTheScaledLoss(Historical):
    points_at = Points("losses")

    def micro_step(self, batch: Batch) -> Tensor:
        return super().micro_step(batch) * self.engine.loss_scale
