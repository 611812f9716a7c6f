"""Bugs of the reduction of gradients over ranks."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.engine.layout import Slot
from zerobench.engine.ops.folding import fold
from zerobench.engine.state.unit import UnitState
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.points import Points

_GRADIENTS = Points("gradients")


class _OverwritesABucket(Historical):
    """The bucket that is folded next has the bytes of a later one."""

    points_at = _GRADIENTS

    def sabotage(self) -> None:
        reducer = self.engine.reducer
        drain = reducer._drain

        def overwritten(allowed: int) -> None:
            self.overwrite(reducer._flying)
            drain(allowed)

        reducer._drain = overwritten  # type: ignore[method-assign]

    def overwrite(self, flying: deque[Any]) -> None:
        for one, later in zip(list(flying), list(flying)[1:], strict=False):
            if self.shares(one, later) and one.received.shape == later.received.shape:
                one.work.wait()
                later.work.wait()
                one.received.copy_(later.received)

    def shares(self, one: Any, later: Any) -> bool:
        """Whether the two use one buffer."""
        raise NotImplementedError


@happened_in(
    "DeepSpeed 0.17.6 to 0.18.2",
    "deepspeedai/DeepSpeed#7718",
    "deepspeedai/DeepSpeed#7188",
    story="With ZeRO-2 and overlap_comm the index of the two buffers is reset, so a bucket overwrites one in flight.",
)
class ResetsThePingPongBuffer(_OverwritesABucket):
    def shares(self, one: Any, later: Any) -> bool:
        return self.scenario.stage == 2 and self.scenario.overlap


@happened_in(
    "torch FSDP2",
    "pytorch/pytorch#140044",
    story="A layer's buffer is reused while its all-reduce is in flight: it has the next layer's gradients.",
)
class ReusesTheBufferOfALayer(_OverwritesABucket):
    def shares(self, one: Any, later: Any) -> bool:
        return self.scenario.stage == 3 and one.state is not later.state


@happened_in(
    "DeepSpeed 0.18.3 to 0.19.3",
    "deepspeedai/DeepSpeed#8224",
    story="On several ranks ZeRO-2 computes wrong gradients of a submodule that a forward calls more than once.",
)
class LosesAUseOfAModule(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        self.calls: dict[nn.Parameter, int] = {}
        if self.scenario.stage == 2 and self.scenario.world > 1:
            for block in self.model.get_submodule("blocks").children():
                block.register_forward_pre_hook(self.count)
            self.patch_gradients(self.one_use)

    def count(self, block: nn.Module, _: Any) -> None:
        for p in block.parameters():
            self.calls[p] = self.calls.get(p, 0) + 1

    def one_use(self, state: UnitState, slot: Slot, gradient: Tensor) -> Tensor:
        calls = self.calls.pop(slot.parameter, 1)
        return gradient / calls if calls > 1 else gradient


@happened_in(
    "torch FSDP1",
    "pytorch/pytorch#154888",
    "verl-project/verl#7493",
    story="HYBRID_SHARD on an (N, 1) mesh divides gradients by the ranks and never adds them.",
)
class DividesWithoutAdding(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        rank = self.engine.ranks.rank
        self.patch_fold(lambda total, rows, *, first: fold(total, rows[rank : rank + 1], first=first))


@happened_in(
    "torch (gloo)",
    "pytorch/pytorch#162338",
    story="The average of a collective on gloo is the sum over the ranks.",
)
class AveragesOverMicroStepsOnly(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: leaves // self.scenario.world)


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#4321",
    story="Stage 3 does not reduce a parameter that has exactly as many elements as a bucket.",
    by="test_buckets_that_end_with_a_parameter",
)
class SkipsAParameterAsLargeAsABucket(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        self.patch_gradients(self.own_if_it_fills_a_bucket)

    def own_if_it_fills_a_bucket(self, state: UnitState, slot: Slot, gradient: Tensor) -> Tensor:
        """The gradient, or only its elements that this rank owns."""
        if slot.numel != self.scenario.reduce_bucket:
            return gradient
        flat, mine = torch.zeros(2, state.unit.padded, dtype=gradient.dtype)
        slot.view(flat).copy_(gradient)
        mine[state.own] = flat[state.own]
        return slot.view(mine)


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7653",
    "deepspeedai/DeepSpeed#7660",
    story="A parameter larger than a bucket is looked up by the communication dtype, which has no bucket.",
)
class LooksALargeParameterUpByTheWireDtype(Historical):
    points_at = Points("raised", name=KeyError.__name__)

    def sabotage(self) -> None:
        if self.scenario.communication_dtype not in (None, self.scenario.dtype):
            self.patch_gradients(self.look_up)

    def look_up(self, state: UnitState, slot: Slot, gradient: Tensor) -> Tensor:
        if slot.numel > self.scenario.reduce_bucket:
            raise KeyError(self.scenario.communication_dtype)
        return gradient


@happened_in(
    "torch FSDP2",
    "pytorch/pytorch#144045",
    "pytorch/pytorch#146218",
    story="On one rank NCCL's average gives zeros for a small tensor.",
)
class ZeroesSmallGradientsOnOneRank(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        if self.scenario.world == 1:
            self.patch_gradients(self.without_small_ones)

    def without_small_ones(self, state: UnitState, slot: Slot, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient) if slot.numel < 4 else gradient


@happened_in(
    "fairscale FSDP",
    "facebookresearch/fairscale#1153",
    story="If the data-parallel group has one rank and nothing is sharded, the parameters end without a gradient.",
)
class LosesGradientsOnOneRank(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        if self.scenario.world == 1:
            self.patch_gradients(lambda state, slot, gradient: torch.zeros_like(gradient))
