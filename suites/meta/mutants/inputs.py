"""Engines that keep an input, or what they have computed from it, for a call with another input.

Class of escape: an input that is the same in each call. Each is right if all evaluations have one batch, if a batch
begins where its memory does, or if the client edits by one call.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor

from zerobench.subject import Batch, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_EVALUATED = Points("reads")


class EvaluatesItsFirstBatch(Mutant):
    """Evaluates on memory that it has filled once, as a captured graph does whose inputs are not copied again."""

    points_at: ClassVar[Points] = _EVALUATED
    rare = "language model"
    batch: Batch | None = None

    def evaluate(self, batch: Batch) -> Tensor:
        if self.batch is None:
            self.batch = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
        return super().evaluate(self.batch)


class RemembersALossOfOtherSamples(TorchDdp):
    """Answers an evaluation from the last one until parameters or buffers change."""

    points_at: ClassVar[Points] = _EVALUATED
    rare = "language model"
    kept: tuple[list[Tensor], Tensor] | None = None

    def evaluate(self, batch: Batch) -> Tensor:
        now = [each.detach().clone() for each in (*self.model.parameters(), *self.model.buffers())]
        if self.kept is None or not all(map(torch.equal, self.kept[0], now)):
            self.kept = now, super().evaluate(batch)
        return self.kept[1]


class EvaluatesTheBeginningOfItsMemory(TorchDdp):
    """Takes the first elements of the memory that a batch is in, as a copy by its address and size does."""

    points_at: ClassVar[Points] = _EVALUATED
    rare = "changes of a client on three ranks"

    def evaluate(self, batch: Batch) -> Tensor:
        return super().evaluate({name: _from_the_beginning(value) for name, value in batch.items()})


def _from_the_beginning(value: object) -> object:
    return value.as_strided(value.shape, value.stride(), 0) if isinstance(value, Tensor) else value


class KeepsTheLastEdit(TorchDdp):
    """An edit waits until the parameters are used, and the next one takes its place."""

    points_at: ClassVar[Points] = Points("losses", "gradients", "parameters", "optimizer_state", "norm", "reads")
    rare = "changes of a client on three ranks"
    replaced: State | None = None

    def set_parameters(self, values: State) -> None:
        if self.replaced is not None:
            super().set_parameters(self.replaced)
        self.replaced = {name: self.masters[name].detach().clone() for name in values}
        super().set_parameters(values)

    def micro_step(self, batch: Batch) -> Tensor:
        self.replaced = None
        return super().micro_step(batch)


class ZeroesTheFirstNamesAlone(TorchDdp):
    """A second edit of gradients in a step is lost."""

    points_at: ClassVar[Points] = Points("gradients", "norm", "optimizer_state", "parameters")
    rare = "changes of a client on three ranks"
    edited = False

    def zero_gradients(self, names: Collection[str]) -> None:
        if not self.edited:
            super().zero_gradients(names)
        self.edited = True

    def micro_step(self, batch: Batch) -> Tensor:
        self.edited = False
        return super().micro_step(batch)


#: Each is caught by the Scenario that it names in ``rare``.
INPUTS: list[type[Mutant] | type[TorchDdp]] = [
    EvaluatesItsFirstBatch,
    RemembersALossOfOtherSamples,
    EvaluatesTheBeginningOfItsMemory,
    KeepsTheLastEdit,
    ZeroesTheFirstNamesAlone,
]
