"""The reference engine with NaN wherever no parameter lies."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.scenario import Scenario
from zerobench.subject import Outcome
from zerobench.subjects.reference import Reference


class NanPadding(Reference):
    """Fills the padding of all states with NaN before training and after each step, and new buffers altogether."""

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model, scenario, group)
        torch.use_deterministic_algorithms(True, warn_only=True)  # new memory is filled with NaN
        self._fill()

    def step(self) -> Outcome:
        outcome = super().step()
        self._fill()
        return outcome

    def _fill(self) -> None:
        for state in self.engine.states:
            unit, whole = state.unit, slice(0, state.unit.padded)
            if state.resident:
                _fill(state.full, unit.padding(0, unit.padded))
            shard = state.parameter_store.memory()
            if shard is not None:
                _fill(shard, unit.padding(state.own.start, state.own.stop))
            if unit.trainable:
                span = whole if state.gradient.numel() == unit.padded else state.own
                _fill(state.gradient, unit.padding(span.start, span.stop))
                for tensor in state.optimizer_store.memory(state.portion).values():
                    _fill(tensor, unit.padding(state.extent.start, state.extent.stop))

    def close(self) -> None:
        torch.use_deterministic_algorithms(False)
        super().close()


def _fill(flat: Tensor, gaps: list[tuple[int, int]]) -> None:
    for start, stop in gaps:
        flat[start:stop].fill_(math.nan)
