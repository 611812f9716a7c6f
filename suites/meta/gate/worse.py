"""Engines with right numbers that cost more than the reference: the gate must fail them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Outcome
from zerobench.subjects.reference import Reference


class Same(Reference):
    """The reference engine."""


class OneMoreGather(Reference):
    """Gathers one number more in every step."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.group = group

    def step(self) -> Outcome:
        dist.all_gather([torch.empty(1) for _ in range(self.group.size())], torch.zeros(1), group=self.group)
        return super().step()


class OneMoreByte(Reference):
    """Keeps one byte more of optimizer state."""

    def resident(self) -> dict[str, Sequence[Tensor]]:
        held = super().resident()
        return {**held, "optimizer": [*held["optimizer"], torch.zeros(1, dtype=torch.uint8)]}


class Leak(Reference):
    """Never frees the gradients of a step."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.leaked: list[Tensor] = []

    def step(self) -> Outcome:
        self.leaked.extend(state.gradient.clone() for state in self.engine.states if state.unit.trainable)
        return super().step()


class SmallLeak(Reference):
    """Never frees a hundred numbers of a step."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        self.leaked: list[Tensor] = []

    def step(self) -> Outcome:
        self.leaked.append(torch.ones(100))
        return super().step()
