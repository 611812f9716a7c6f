"""Engines that keep a tensor of the client, and read it when the client uses its memory for something else.

Class of escape: a write of the client to memory that it has given to the engine. Each is right if the client leaves
such memory as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from zerobench.subject import Batch, Outcome, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.client import LATER
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points
from zerobench.workload import models


class SetsParametersWhenTheyAreUsed(Mutant):
    """An edit waits until the parameters are next read or trained."""

    points_at = Points("client")
    waiting: State | None = None

    def set_parameters(self, values: State) -> None:
        self._set()
        self.waiting = values

    def _set(self) -> None:
        values, self.waiting = self.waiting, None
        if values is not None:
            super().set_parameters(values)

    def micro_step(self, batch: Batch) -> Tensor:
        self._set()
        return super().micro_step(batch)

    def evaluate(self, batch: Batch) -> Tensor:
        self._set()
        return super().evaluate(batch)

    def parameters(self) -> State:
        self._set()
        return super().parameters()

    def model_parameters(self) -> State:
        self._set()
        return super().model_parameters()

    def save(self, directory: Path) -> None:
        self._set()
        super().save(directory)


class ReadsAValueInTheOrderOfItsMemory(Mutant):
    """Copies the memory of a value that the client sets, as if its strides were those of the parameter."""

    points_at = (Points("client"), LATER)

    def sabotage(self) -> None:
        shapes = dict(models.shapes(self.scenario).named_parameters())
        self.strides = {name: p.stride() for name, p in shapes.items()}

    def set_parameters(self, values: State) -> None:
        super().set_parameters(
            {name: value.as_strided(value.shape, self.strides[name]) for name, value in values.items()}
        )


class TrainsOnTheBatchWhenItSteps(Mutant):
    """Steps of one micro-step run their backward when the client asks for the update or for gradients."""

    points_at = LATER
    waiting: tuple[Batch, Tensor] | None = None

    def micro_step(self, batch: Batch) -> Tensor:
        scenario = self.scenario
        if scenario.accumulation > 1 or scenario.forwards != "one" or scenario.autocast:
            return super().micro_step(batch)
        self.waiting = batch, torch.get_rng_state()
        kept = {name: buffer.clone() for name, buffer in self.engine.module.named_buffers()}
        with torch.no_grad():
            loss: Tensor = self.engine(**batch)
            for name, buffer in self.engine.module.named_buffers():
                buffer.copy_(kept[name])
        return loss

    def _train(self) -> None:
        if self.waiting is not None:
            (batch, numbers), self.waiting = self.waiting, None
            torch.set_rng_state(numbers)
            super().micro_step(batch)

    def zero_gradients(self, names: Collection[str]) -> None:
        self._train()
        super().zero_gradients(names)

    def gradients(self) -> State:
        self._train()
        return super().gradients()

    def step(self) -> Outcome:
        self._train()
        return super().step()

    def advance(self) -> None:
        self._train()
        super().advance()


class TakesATensorForTheSameBatch(TorchDdp):
    """Copies a batch once if the client gives the same tensors, whatever it has written to them since."""

    points_at = LATER
    given: tuple[list[Tensor], Batch] | None = None

    def micro_step(self, batch: Batch) -> Tensor:
        tensors = [value for value in batch.values() if isinstance(value, Tensor)]
        if self.given is None or any(now is not before for now, before in zip(tensors, self.given[0], strict=True)):
            copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
            self.given = tensors, copies
        return super().micro_step(self.given[1])


class TrainsOnTheBeginningOfItsMemory(Mutant):
    """Takes the first elements of the memory that a batch is in."""

    points_at = LATER

    def micro_step(self, batch: Batch) -> Tensor:
        return super().micro_step(
            {
                name: value.as_strided(value.shape, value.stride(), 0) if isinstance(value, Tensor) else value
                for name, value in batch.items()
            }
        )


GIVEN_VALUES: list[type[Mutant]] = [SetsParametersWhenTheyAreUsed]
GIVEN_STRIDES: list[type[Mutant]] = [ReadsAValueInTheOrderOfItsMemory]
GIVEN_BATCHES: list[type[Mutant] | type[TorchDdp]] = [
    TrainsOnTheBatchWhenItSteps,
    TakesATensorForTheSameBatch,
    TrainsOnTheBeginningOfItsMemory,
]
