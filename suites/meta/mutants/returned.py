"""Engines whose numbers are right when they are returned, and whose returned values are not the client's to keep.

Class of escape: a value that a call has returned, and that the client keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.subject import Batch, State
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class ReturnsLossesWithTheirGraph(Mutant):
    """The activations of a leaf stay as long as the client keeps its loss."""

    points_at = Points("raised", name=ValueError.__name__)

    def micro_step(self, batch: Batch) -> Tensor:
        return super().micro_step(batch) + torch.zeros((), requires_grad=True)


class ReadsIntoTheMemoryOfTheLastReading(Mutant):
    """A parameter's master and its first state are read into the same tensor."""

    points_at = Points("client")

    def sabotage(self) -> None:
        self.memory: State = {}

    def _read_into_memory(self, values: State) -> State:
        for name, value in values.items():
            self.memory.setdefault(name, torch.empty_like(value)).copy_(value)
        return {name: self.memory[name] for name in values}

    def parameters(self) -> State:
        return self._read_into_memory(super().parameters())

    def optimizer_state(self) -> dict[str, State]:
        states = super().optimizer_state()
        for key in self.optimizer.state_names[:1]:
            found = self._read_into_memory({name: each[key] for name, each in states.items()})
            states = {name: {**each, key: found[name]} for name, each in states.items()}
        return states


RETURNED_LOSSES: list[type[Mutant]] = [ReturnsLossesWithTheirGraph]
RETURNED_READINGS: list[type[Mutant]] = [ReadsIntoTheMemoryOfTheLastReading]
