"""Bugs of the optimizer's step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from zerobench.engine.layout import Slot
from zerobench.engine.optim.step import _Run
from zerobench.engine.state.stores import UpdateSlice
from zerobench.engine.state.unit import UnitState
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.mutants.offload import ToFiles, ToHost, offloading_stores
from zerobench.suites.meta.points import Points

_UPDATE = Points("optimizer_state", "parameters")


class _StepsAPart(Historical):
    """Steps only some elements of a parameter."""

    points_at = _UPDATE

    def sabotage(self) -> None:
        stepper = self.engine.stepper
        runs = stepper._runs
        stepper._runs = lambda state, active: self.cut(state, runs(state, active))  # type: ignore[method-assign]

    def cut(self, state: UnitState, runs: list[_Run]) -> list[_Run]:
        return list(self._kept(state, runs))

    def _kept(self, state: UnitState, runs: list[_Run]) -> Iterator[_Run]:
        offset = state.extent.start
        for run in runs:
            for slot, lo, hi in state.unit.pieces(run.start + offset, run.stop + offset):
                first, last = self.stepped(slot)
                start, stop = max(lo, slot.start + first), min(hi, slot.start + last)
                if start < stop:
                    yield dataclasses.replace(run, start=start - offset, stop=stop - offset)

    def stepped(self, slot: Slot) -> tuple[int, int]:
        """The range of a parameter's elements that the optimizer steps."""
        raise NotImplementedError


@happened_in(
    "DeepSpeed CPU Adam, ColossalAI CPU Adam",
    "deepspeedai/DeepSpeed#3109",
    "hpcaitech/ColossalAI#633",
    story="The kernel takes size(0) for the number of elements, so most of a matrix is never updated.",
)
class StepsAsManyElementsAsRows(_StepsAPart):
    def stepped(self, slot: Slot) -> tuple[int, int]:
        shape = slot.parameter.shape
        return (0, shape[0] if self.offloads and len(shape) > 1 else slot.numel)


@happened_in(
    "DeepSpeed CPU Adam",
    "deepspeedai/DeepSpeed#735",
    story="The elements after the last full vector are lost in the scalar loop's buffer.",
)
class LosesTheScalarTail(_StepsAPart):
    def stepped(self, slot: Slot) -> tuple[int, int]:
        return (0, slot.numel // 8 * 8 if self.offloads else slot.numel)


@happened_in(
    "torch 2.13 (CPU)",
    "pytorch/pytorch#191763",
    "pytorch/pytorch#192545",
    story="SGD(fused=True) in 16 bits never updates full SIMD vectors, only the elements after them.",
)
class StepsTheScalarTailOnly(_StepsAPart):
    def stepped(self, slot: Slot) -> tuple[int, int]:
        affected = self.scenario.optimizer.name == "sgd" and self.scenario.dtype != "fp32"
        return (slot.numel // 32 * 32 if affected else 0, slot.numel)


@happened_in(
    "torch FSDP2",
    "pytorch/pytorch#176076",
    "pytorch/pytorch#176225",
    story="If tied weights are in two groups and the sharding is uneven, the last rank's rows are never updated.",
)
class NeverStepsTheLastRowsOfATiedWeight(_StepsAPart):
    def stepped(self, slot: Slot) -> tuple[int, int]:
        rows = slot.parameter.shape[0] if slot.parameter.dim() else 1
        if not self.odd.tied or slot.name != "stem.weight" or self.scenario.stage != 3 or self.scenario.world == 1:
            return (0, slot.numel)
        last = -(-rows // self.scenario.world) * (self.scenario.world - 1)
        return (0, min(rows, last) * (slot.numel // rows))


@happened_in(
    "DeepSpeed CPU Adam",
    "deepspeedai/DeepSpeed#503",
    story="The kernel multiplies the momentum by the momentum, not by its beta alone.",
)
class SquaresTheMomentum(Historical):
    points_at = _UPDATE

    def sabotage(self) -> None:
        update = self.engine.stepper._update

        def squared(part: UpdateSlice, *args: Any) -> None:
            part.optimizer[0].mul_(part.optimizer[0])
            update(part, *args)

        if self.offloads and self.scenario.optimizer.name in ("adam", "adamw"):
            self.engine.stepper._update = squared  # type: ignore[method-assign,assignment]


@happened_in(
    "DeepSpeed before 2022-05",
    "deepspeedai/DeepSpeed#1823",
    story="At stage 3 every sub-group of a step advances the step count of Adam's bias correction.",
)
class CountsAStepForEachSubGroup(Historical):
    points_at = _UPDATE

    def sabotage(self) -> None:
        stepper = self.engine.stepper
        step, update, values = stepper.step, stepper._step, stepper.optimizer.values
        self.sub_groups = 0

        def stepping(*args: Any) -> None:
            self.sub_groups = 0
            step(*args)

        def updating(*args: Any) -> None:
            update(*args)
            self.sub_groups += self.scenario.stage == 3

        stepper.step, stepper._step = stepping, updating  # type: ignore[method-assign,assignment]
        stepper.optimizer.values = lambda group, step: values(group, step + self.sub_groups)  # type: ignore[method-assign]


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#2058",
    "deepspeedai/DeepSpeed#2059",
    story="With offload the updated parameters are copied to another partition's place.",
)
class CopiesToTheWrongPartition(ToHost, Historical):
    points_at = Points("model_parameters", "losses", "parameters")

    def sabotage(self) -> None:
        for state in self.trained_units() if self.offloads else ():
            state.parameter_store.accept = _to_the_end(  # type: ignore[method-assign]
                state.parameter_store.accept, state.unit.shard
            )


def _to_the_end(accept: Callable[..., Any], elements: int) -> Any:
    """``accept``, with its pieces in reverse order."""
    return lambda start, values, *, host: accept(elements - start - values.numel(), values, host=host)


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#2272",
    "deepspeedai/DeepSpeed#2282",
    story="With the optimizer on NVMe only a part of the gradients is offloaded; the loss hardly falls.",
)
class OffloadsAPartOfTheGradients(ToFiles, Historical):
    points_at = Points("gradients")

    def sabotage(self) -> None:
        for store in offloading_stores(self):
            store._keep = _first_sub_group(store._keep, store.sub_group)


def _first_sub_group(keep: Callable[..., None], elements: int) -> Any:
    """``keep``, with zeros after the first sub-group of each unit."""

    def part(portion: Any, start: int, stop: int, values: Tensor) -> None:
        kept = values.clone()
        kept[max(0, elements - start) :] = 0
        keep(portion, start, stop, kept)

    return part
