"""Bugs that leave every bit right and cost memory or traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.comm.shards import gather_shards
from zerobench.engine.state.unit import UnitState
from zerobench.scenario import Scenario
from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_RESIDENT = "test_resident_bytes_whatever_the_scenario"
_TRAFFIC = "test_traffic_whatever_the_scenario"


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#8029",
    "deepspeedai/DeepSpeed#7515",
    story="The optimizer flattens frozen weights into its fp32 copy, too, so LoRA needs the memory of full training.",
    by=_RESIDENT,
)
class KeepsMastersOfFrozenWeights(Mutant):
    points_at = Points("resident", name="optimizer")

    def resident(self) -> dict[str, Sequence[Tensor]]:
        held = super().resident()
        frozen = [torch.zeros(p.numel()) for p in self.model.parameters() if not p.requires_grad]
        return {**held, "optimizer": [*held["optimizer"], *frozen]}


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7415",
    "deepspeedai/DeepSpeed#7418",
    story="At stage 3 a bucket's count is never reset: after the first full bucket each parameter is reduced alone.",
    by=_TRAFFIC,
)
class ReducesInTheLeastBuckets(Historical):
    points_at = Points("traffic")

    def step(self) -> Outcome:
        outcome = super().step()
        if self.scenario.stage == 3:
            self.engine.reducer.bucket = 1
        return outcome


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7059",
    story="With reduce_scatter on, ZeRO-2 issues all-reduces: every rank receives every sum.",
    by=_TRAFFIC,
)
class ReducesToEveryRank(Historical):
    points_at = Points("traffic")

    def sabotage(self) -> None:
        reducer, complete = self.engine.reducer, self.engine.reducer._complete

        def everywhere(state: UnitState) -> None:
            complete(state)
            if self.scenario.stage == 2 and state.own_gradient.numel():
                whole: Any = torch.empty(state.unit.padded, dtype=state.gradient.dtype)
                bucket = reducer.gather_bucket
                reducer._completing.add(gather_shards(state.unit, whole, state.own_gradient, reducer.ranks, bucket))

        reducer._complete = everywhere  # type: ignore[method-assign]


@happened_in(
    "torch DDP",
    "pytorch/pytorch#63375",
    story="The fp16 compression hook in C++ does not compress.",
    by=_TRAFFIC,
)
class SendsHalfPrecisionInFp32(Mutant):
    """The values are the same ones, because an fp32 number holds each of them."""

    points_at = Points("traffic")

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        compressed = scenario.communication_dtype in (None, "fp16") and scenario.dtype == "fp16"
        super().__init__(model, scenario.but(communication_dtype="fp32") if compressed else scenario, group)
