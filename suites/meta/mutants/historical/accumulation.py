"""Bugs of the accumulation of micro-steps: gradients lost, counted again, or kept from an earlier step."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zerobench.engine.layout import Slot
from zerobench.engine.state.unit import UnitState
from zerobench.suites.meta.mutants.historical.bug import Historical, happened_in
from zerobench.suites.meta.points import Points

_GRADIENTS = Points("gradients")


@happened_in(
    "DeepSpeed 0.18.6 to 0.18.10",
    "deepspeedai/DeepSpeed#7985",
    story="In BF16_Optimizer the gradient of the last micro-step joins the sum after the reduction, on its own rank.",
)
class ReducesBeforeTheLastMicroStep(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        reducer = self.engine.reducer
        launch, send = reducer._launch, reducer._send
        before: dict[UnitState, Tensor] = {}

        def launching(state: UnitState) -> None:
            if not reducer.every_micro_step and not reducer.backward.first and reducer.backward.last:
                before[state] = state.gradient.clone()
            launch(state)

        def sending(state: UnitState, flat: Tensor) -> None:
            stale = before.pop(state, flat)
            stale[state.own] = flat[state.own]
            send(state, stale)

        reducer._launch, reducer._send = launching, sending  # type: ignore[method-assign]


class _KeepsTheLastBackward(Historical):
    """Off the device, each micro-step's sum replaces the one before."""

    points_at = _GRADIENTS
    stages: ClassVar[tuple[int, ...]]

    def sabotage(self) -> None:
        if self.offloads and self.scenario.stage in self.stages:
            self.patch_begin(self.forget)

    def forget(self, first: bool) -> None:
        self.engine.reducer.backward.first = True


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7981",
    "allenai/open-instruct#1498",
    story="ZeRO-1 and 2 with CPU offload keep the last backward's gradient only, if the client sets the boundaries.",
)
class KeepsTheLastBackwardOnTheHost(_KeepsTheLastBackward):
    stages = (1, 2)


@happened_in(
    "torch FSDP1",
    "pytorch/pytorch#73784",
    story="Outside no_sync and with CPU offload, a newly reduced gradient replaces the accumulated one.",
)
class ReplacesTheShardOnTheHost(_KeepsTheLastBackward):
    stages = (3,)


@happened_in(
    "DeepSpeed, 2024-09 to 2026-04",
    "deepspeedai/DeepSpeed#7967",
    story="With CPU offload a gradient is copied to the host in the first micro-step only; the others are dropped.",
)
class CopiesTheFirstMicroStepOnly(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        if self.offloads and self.scenario.stage in (1, 2):
            self.patch_gradients(self.first_only)

    def first_only(self, state: UnitState, slot: Slot, gradient: Tensor) -> Tensor:
        return gradient if self.engine.reducer.backward.first else torch.zeros_like(gradient)


@happened_in(
    "DeepSpeed before 2024-09",
    "deepspeedai/DeepSpeed#6550",
    story="With ZeRO-2 and offload every micro-step before the boundary replaces the sum instead of adding to it.",
)
class AddsAtTheBoundaryOnly(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        if self.offloads and self.scenario.stage == 2:
            self.patch_begin(self.replace)

    def replace(self, first: bool) -> None:
        backward = self.engine.reducer.backward
        backward.first = backward.first or not backward.last


@happened_in(
    "Megatron Core",
    "NVIDIA/Megatron-LM#4609",
    story="The gradient buffer receives the gathered parameters and is not zeroed: the next backward adds to them.",
)
class AddsToGatheredParameters(Historical):
    points_at = Points("gradients", step=1)

    def sabotage(self) -> None:
        if self.scenario.stage < 3:
            self.patch_begin(self.start_from_parameters)

    def start_from_parameters(self, first: bool) -> None:
        if not first or not self.engine.global_steps:
            return
        for state in self.trained_units():
            gathered = state.full if state.gradient.numel() == state.unit.padded else state.full[state.own]
            if state.gradient.numel():
                state.gradient.copy_(gathered)
        self.engine.reducer.backward.first = False


@happened_in(
    "Megatron-FSDP",
    "NVIDIA/Megatron-LM#6660",
    story="If a data-parallel group has one rank, the accumulated gradient doubles in each micro-step.",
)
class DoublesTheSumOfOneRank(Historical):
    points_at = _GRADIENTS

    def sabotage(self) -> None:
        if self.scenario.world == 1:
            self.patch_begin(self.double)

    def double(self, first: bool) -> None:
        for state in () if first else self.trained_units():
            state.gradient.mul_(2)


@happened_in(
    "DeepSpeed",
    "deepspeedai/DeepSpeed#7839",
    "deepspeedai/DeepSpeed#7837",
    story="In bf16 without ZeRO no step zeroes the gradients, so they accumulate over all steps.",
)
class NeverZeroesInBf16(Historical):
    #: A first step without gradients leaves nothing to add to.
    points_at = (Points("gradients", step=1), Points("gradients", step=2))

    def sabotage(self) -> None:
        if self.scenario.dtype == "bf16" and self.scenario.stage == 0:
            self.patch_begin(self.go_on)

    def go_on(self, first: bool) -> None:
        if self.engine.global_steps:
            self.engine.reducer.backward.first = False
