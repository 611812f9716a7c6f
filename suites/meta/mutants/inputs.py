"""Engines that keep an input, or what they have computed from it, for a call with another input.

Class of escape: an input that is the same in each call. Each is right if all evaluations have one batch.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zerobench.subject import Batch
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


#: Each is caught by the Scenario that it names in ``rare``.
INPUTS: list[type[Mutant] | type[TorchDdp]] = [EvaluatesItsFirstBatch, RemembersALossOfOtherSamples]
