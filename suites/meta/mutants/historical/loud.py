"""Bugs that end the training with an exception."""

from __future__ import annotations

from torch import Tensor

from zerobench.engine.layout import Slot
from zerobench.engine.state.unit import UnitState
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.points import Points


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#861",
    "deepspeedai/DeepSpeed#707",
    story="With CPU offload the norm looks up the gradient of a parameter that no forward uses.",
)
class LooksUpAnUnusedGradient(Historical):
    points_at = Points("raised", name=KeyError.__name__)

    def step(self) -> Outcome:
        if self.offloads and not all(self.engine.reducer.active):
            raise KeyError(self.engine.reducer.active.index(False))
        return super().step()


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#8279",
    "deepspeedai/DeepSpeed#7789",
    story="A parameter without elements ends the step.",
)
class CannotReduceAnEmptyParameter(Historical):
    points_at = Points("raised", name=IndexError.__name__)

    def sabotage(self) -> None:
        if self.scenario.stage:
            self.patch_gradients(self.first_element)

    def first_element(self, state: UnitState, slot: Slot, gradient: Tensor) -> Tensor:
        gradient.reshape(-1)[:1].sum() if slot.numel else gradient.new_empty(0)[0]
        return gradient


@happened_in(
    "DeepSpeed (hpZ), torch FSDP1 (grad scaler)",
    "deepspeedai/DeepSpeed#6659",
    "pytorch/pytorch#99174",
    story="A rank whose shard is empty cannot take its part of it.",
)
class CannotNarrowAnEmptyShard(Historical):
    points_at = Points("raised", name=RuntimeError.__name__)

    def step(self) -> Outcome:
        empty = any(state.own.start >= state.unit.length for state in self.trained_units())
        if self.scenario.stage == 3 and empty:
            raise RuntimeError("start out of range")
        return super().step()


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#988",
    "deepspeedai/DeepSpeed#627",
    story="ZeRO-2 refuses a second gradient of a block that is called twice and recomputed.",
)
class ReducesABlockOnceOnly(Historical):
    points_at = Points("raised", name=AssertionError.__name__)

    def micro_step(self, batch: Batch) -> Tensor:
        twice = self.odd.reused and self.odd.recompute == "reentrant"
        assert self.scenario.stage != 2 or not twice, "Gradient computed twice for this partition."
        return super().micro_step(batch)


@happened_in(
    "torch FSDP2 2.13",
    "pytorch/pytorch#196996",
    "pytorch/pytorch#160279",
    story="In 16 bits a parameter that is used first in the last micro-step has a gradient of another dtype.",
    by="test_a_block_that_rests",
)
class RefusesALateFirstUse(Historical):
    points_at = Points("raised", name=AssertionError.__name__)

    def sabotage(self) -> None:
        self.used: set[str] = set()
        if self.scenario.stage == 3 and self.scenario.dtype != "fp32" and self.scenario.accumulation > 1:
            self.patch_gradients(self.refuse)

    def refuse(self, state: UnitState, slot: Slot, gradient: Tensor) -> Tensor:
        backward = self.engine.reducer.backward
        first = slot.name not in self.used
        assert not (first and backward.last), f"the gradient of {slot.name} has another dtype than its sum"
        self.used.add(slot.name)
        return gradient

    def step(self) -> Outcome:
        self.used.clear()
        return super().step()
