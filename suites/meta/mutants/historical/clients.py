"""More bugs of torch's wrappers and of the trainers around them, in torch DDP itself."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zerobench.subject import Batch
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.historical.bug import happened_in
from zerobench.suites.meta.points import Points

_FOLLOWS = "test_each_step_follows_from_the_one_before"
_LOADS = "test_each_step_follows_over_any_load"
_UPDATE = Points("optimizer_state", "parameters")


@happened_in(
    "torch.distributed.checkpoint, 2.3",
    "pytorch/pytorch#129079",
    story="A load leaves the rates of the new optimizer as they are, so that the first steps have its initial ones.",
    by=_LOADS,
)
class KeepsItsRatesInALoad(TorchDdp):
    points_at: ClassVar[Points] = _UPDATE

    def load(self, directory: Path) -> None:
        own = [group["lr"] for group in self.optimizer.param_groups]
        super().load(directory)
        for group, lr in zip(self.optimizer.param_groups, own, strict=True):
            group["lr"] = lr


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#5150",
    story="Gradients whose norm is below the limit are multiplied by the limit over the norm, too.",
    by=_FOLLOWS,
)
class ScalesUpToTheLimit(TorchDdp):
    points_at: ClassVar[Points] = _UPDATE

    def _clip(self) -> Tensor | None:
        norm = super()._clip()
        if norm is not None and 0 < norm < self.scenario.clip:
            for p in self.masters.values():
                if p.grad is not None:
                    p.grad.mul_(self.scenario.clip / norm)
        return norm


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7786",
    story="Without ZeRO a checkpoint of a model in bf16 has no optimizer states: they begin anew after a load.",
    by=_LOADS,
)
class LoadsNoStatesInBf16(TorchDdp):
    points_at: ClassVar[Points] = _UPDATE

    def _optimizer_state_dict(self) -> dict[str, Any]:
        found = super()._optimizer_state_dict()
        return {**found, "state": {}} if self.scenario.dtype == "bf16" else found


@happened_in(
    "torch ZeroRedundancyOptimizer, until 2021",
    "pytorch/pytorch#54736",
    story="With several parameter groups the state dict has the states by the order of the model's parameters.",
    by=_LOADS,
)
class SavesStatesInTheModelsOrder(TorchDdp):
    points_at: ClassVar[Points] = _UPDATE

    def _optimizer_state_dict(self) -> dict[str, Any]:
        found = super()._optimizer_state_dict()
        grouped = [p for group in self.optimizer.param_groups for p in group["params"]]
        states, moved = found["state"], {}
        for place, p in enumerate(self.masters.values()):
            there = next(number for number, each in enumerate(grouped) if each is p)
            fits = place in states and there in states and grouped[place].shape == p.shape
            moved[place] = states[there if fits else place] if place in states else None
        return {**found, "state": {place: each for place, each in moved.items() if each is not None}}


@happened_in(
    "torch FSDP1 (hybrid sharding)",
    "pytorch/pytorch#178569",
    story="Ranks that are not on the first machine keep their own buffers: a flag says that they are synchronized.",
    by="test_buckets_that_end_with_a_parameter_follow",
)
class KeepsTheBuffersOfTheLastRank(TorchDdp):
    points_at: ClassVar[Points] = Points("losses", "gradients", "evaluation")

    def _wrap(self) -> nn.Module:
        own = {name: each.clone() for name, each in self.model.named_buffers()}
        wrapped = super()._wrap()
        if self.scenario.world > 1 and torch.distributed.get_rank(self.group) == self.scenario.world - 1:
            for name, each in self.model.named_buffers():
                each.copy_(own[name])
        return wrapped


@happened_in(
    "torch DDP, until 2021",
    "pytorch/pytorch#51929",
    story="A weight that two modules share has two hooks, so that its gradient is averaged and divided twice.",
    by="test_a_block_that_rests",
)
class DividesTiedGradientsTwice(TorchDdp):
    points_at: ClassVar[Points] = Points("gradients")

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        names = Counter(p for _, p in self.model.named_parameters(remove_duplicate=False))
        for p in self.working.values() if self.micro_steps == self.boundary else ():
            if names[p] > 1 and p.grad is not None:
                p.grad.div_(self.scenario.world)
        return loss


@happened_in(
    "Fast-LLM",
    "ServiceNow/Fast-LLM#551",
    "ServiceNow/Fast-LLM#550",
    story="On one rank each micro-step's gradient replaces the sum of those before it.",
    by=_FOLLOWS,
)
class ReplacesTheSumOnOneRank(TorchDdp):
    points_at: ClassVar[Points] = Points("gradients")

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        if self.scenario.world == 1:
            self._zero_grad()
        return super()._synchronizing(needed)


@happened_in(
    "NeMo, with torch FSDP1",
    "NVIDIA-NeMo/Speech#9335",
    story="With use_orig_params the trainer takes sharded gradients for whole ones, and reduces them once more.",
    by=_FOLLOWS,
)
class ReducesSmallGradientsAgain(TorchDdp):
    points_at: ClassVar[Points] = Points("gradients")

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        if self.micro_steps == self.boundary:
            for p in self.working.values():
                if p.ndim == 1 and p.grad is not None:
                    p.grad.mul_(self.scenario.world)
        return loss
