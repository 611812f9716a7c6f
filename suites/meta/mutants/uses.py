"""Engines that are right in every bit, and in the bytes of the plain use of an engine; see plain.py and within.py.

Class of escape: a byte that only another use shows: a second call, a call after a load or after a skipped step, another
setting of the offload, a model of which a parameter rests, a program in which the garbage collector does not run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.state.stores import ParameterStore
from zerobench.subject import Batch, Outcome, State
from zerobench.subjects.torch_fsdp2 import TorchFsdp2
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class GrowsWithTheSecondSkippedStepInARow(Mutant):
    points_at = Points("growth", name="tensors")

    def sabotage(self) -> None:
        self.was_skipped, self.norms = False, list[Tensor]()

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.skipped and self.was_skipped:
            self.norms.append(torch.ones(1))
        self.was_skipped = outcome.skipped
        return outcome


class HoldsTheModelWithinTheThirdEvaluation(Mutant):
    points_at = Points("within", name="evaluation")
    evaluations = 0

    def evaluate(self, batch: Batch) -> Tensor:
        self.evaluations += 1
        copy = torch.ones(_elements(self) if self.evaluations == 3 else 0)
        loss = super().evaluate(batch)
        del copy
        return loss


class KeepsArraysBesideTwinFlow(Mutant):
    points_at = Points("process")

    def sabotage(self) -> None:
        twin = self.scenario.optimizer_at != "none" and self.scenario.offload_ratio < 1
        self.array = np.ones(_elements(self) if twin else 0, np.float32)


class LeavesAFileOfItsWriteBehind(Mutant):
    points_at = Points("left", name="files")

    def close(self) -> None:
        super().close()
        if self.scenario.optimizer_at == "nvme" and self.scenario.pipeline_write:
            Path(self.scenario.nvme_path, f"behind-{dist.get_rank(self.group)}").write_bytes(b"left")


class LeavesATensorInACycle(Mutant):
    """In each step of several micro-steps; the garbage collector frees it."""

    points_at = Points("growth", name="cycles")

    def step(self) -> Outcome:
        if self.scenario.accumulation > 1:
            held: list[object] = [torch.ones(100)]
            held.append(held)
        return super().step()


class SendsThroughAStoreIfAParameterRests(Mutant):
    points_at = Points("wire")

    def step(self) -> Outcome:
        if not all(self.engine.reducer.active):
            store = dist.distributed_c10d._get_default_store()
            store.set(f"flags of rank {dist.get_rank(self.group)}", "x" * 100_000)
        return super().step()


class LeavesADescriptorOfEachLoad(Mutant):
    points_at = Points("left", name="descriptors")

    def load(self, directory: Path) -> None:
        super().load(directory)
        os.open(directory, os.O_RDONLY)


class OpensADescriptorInEachLoad(Mutant):
    """Closes them with the engine."""

    points_at = Points("growth", name="descriptors")

    def sabotage(self) -> None:
        self.opened: list[int] = []

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.opened.append(os.open(directory, os.O_RDONLY))

    def close(self) -> None:
        for each in self.opened:
            os.close(each)
        super().close()


class KeepsTheValuesOfAnEdit(Mutant):
    points_at = Points("undeclared")

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        self.given = {name: value.clone() for name, value in values.items()}


class KeepsWholeCopiesOfFrozenParameters(Mutant):
    """At stage 3 every rank keeps them."""

    points_at = Points("undeclared")

    def sabotage(self) -> None:
        frozen = (state for state in self.engine.states if state.sharded and not state.unit.trainable)
        self.copies = [torch.ones(state.unit.padded, dtype=state.dtype) for state in frozen]


class KeepsFrozenParametersThatItHasLoaded(Mutant):
    """At stage 3 every rank keeps whole copies from a load on."""

    points_at = Points("undeclared")

    def load(self, directory: Path) -> None:
        super().load(directory)
        frozen = (state for state in self.engine.states if state.sharded and not state.unit.trainable)
        self.copies = [torch.ones(state.unit.padded, dtype=state.dtype) for state in frozen]


class Fsdp2GathersMastersForAnEvaluation(TorchFsdp2):
    """In 16 bits an evaluation gathers the fp32 shards, too."""

    points_at = Points("traffic", name="an evaluation")

    def evaluate(self, batch: Batch) -> Tensor:
        if self.scenario.dtype != "fp32":
            self.parameters()
        return super().evaluate(batch)


class KeepsShardsThatItHasUploaded(Mutant):
    """If parameters are in host memory, their copies on the device are alive until the next ones."""

    points_at = Points("undeclared")

    def sabotage(self) -> None:
        self.copies: dict[ParameterStore, Tensor] = {}
        for state in self.engine.states:
            if self.scenario.parameters_at == "cpu" and state.sharded:
                store = state.parameter_store
                store.load = partial(self._keep, store, store.load)  # type: ignore[method-assign]

    def _keep(self, store: ParameterStore, load: Callable[[], Tensor]) -> Tensor:
        self.copies[store] = load()
        return self.copies[store]


class GrowsWithEveryEdit(Mutant):
    points_at = Points("growth", name="tensors")

    def sabotage(self) -> None:
        self.sizes: list[Tensor] = []

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        self.sizes.append(torch.ones(1))


class GathersWhatItHasInAStep(Mutant):
    """An evaluation between two micro-steps gathers the parameters that every rank keeps."""

    points_at = Points("traffic", name="all_gather")

    def evaluate(self, batch: Batch) -> Tensor:
        for state in self.engine.states if self.engine.accumulation.begun else ():
            if not state.sharded:
                dist.all_gather_into_tensor(torch.empty_like(state.full), state.full[state.own].clone(), self.group)
        return super().evaluate(batch)


class GathersInAnEvaluationAfterASkippedStep(Mutant):
    points_at = Points("traffic", name="all_gather")
    was_skipped = False

    def step(self) -> Outcome:
        outcome = super().step()
        self.was_skipped = outcome.skipped
        return outcome

    def evaluate(self, batch: Batch) -> Tensor:
        if self.was_skipped:
            dist.all_gather([torch.empty(1) for _ in range(self.group.size())], torch.zeros(1), group=self.group)
        return super().evaluate(batch)


class KeepsGradientsUntilTheUpdate(Mutant):
    """From the end of the last micro-step of several on."""

    points_at = Points("unreduced", name="gradients")

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        if self.engine.micro_steps > 1:
            self.whole = torch.ones(_elements(self))
        return loss

    def step(self) -> Outcome:
        self.whole = torch.empty(0)
        return super().step()


def _elements(mutant: Mutant) -> int:
    """Of the whole model, padding included."""
    return sum(state.unit.padded for state in mutant.engine.states)


#: By the property that catches them.
class StaysWholeAfterAnEvaluationInAStep(Mutant):
    """At stage 3 an evaluation between micro-steps leaves its units whole until the next forward."""

    points_at = Points("resident", "traffic")

    def evaluate(self, batch: Batch) -> Tensor:
        unsharder = self.engine.unsharder
        if unsharder is None or not self.engine.accumulation.begun:
            return super().evaluate(batch)
        kept, unsharder.max_live = unsharder.max_live, sys.maxsize
        try:
            return super().evaluate(batch)
        finally:
            unsharder.max_live = kept


class ReservesItsFileAgainInEachLoad(Mutant):
    """Each load makes the file of the states longer by as many bytes as they have."""

    points_at = Points("files")

    def load(self, directory: Path) -> None:
        super().load(directory)
        for file in self.engine.stores._files:
            file.reserve(4 * sum(state.unit.shard for state in self.engine.states))


class SendsThroughAStoreIfItClips(Mutant):
    """Each rank writes as many bytes as its gradients have to the store of the process group."""

    points_at = Points("wire")

    def step(self) -> Outcome:
        if self.scenario.clip:
            bytes_ = sum(state.unit.shard * 4 for state in self.engine.states)
            dist.distributed_c10d._get_default_store().set(f"gradients of {dist.get_rank()}", "x" * bytes_)
        return super().step()


IN_FILES_AFTER_LOADS = [ReservesItsFileAgainInEachLoad]
BETWEEN_MICRO_STEPS = [StaysWholeAfterAnEvaluationInAStep, GathersWhatItHasInAStep]
IN_LATER_EVALUATIONS = [HoldsTheModelWithinTheThirdEvaluation]
IN_EVALUATIONS_AFTER_A_SKIP = [GathersInAnEvaluationAfterASkippedStep]
BESIDE_TENSORS = [KeepsArraysBesideTwinFlow]
LEFT = [LeavesAFileOfItsWriteBehind, LeavesADescriptorOfEachLoad]


class SavesOutputsWithTheirNode(Mutant):
    """A node that saves its own output is never freed without a backward, as saved-tensor hooks keep the output."""

    points_at = Points("growth", name="tensors")

    def sabotage(self) -> None:
        assert self.engine.hooks is not None
        pack = self.engine.hooks._pack

        def saved(tensor: Tensor) -> Any:
            packed = pack(tensor)
            return tensor if isinstance(packed, Tensor) else packed

        self.engine.hooks._pack = saved  # type: ignore[method-assign]


GROWN = [
    GrowsWithTheSecondSkippedStepInARow,
    LeavesATensorInACycle,
    OpensADescriptorInEachLoad,
    GrowsWithEveryEdit,
]
GROWN_WITH_SHARDED_PARAMETERS = [SavesOutputsWithTheirNode]
ON_THE_WIRE = [SendsThroughAStoreIfAParameterRests, SendsThroughAStoreIfItClips]
EDITED = [KeepsTheValuesOfAnEdit]
IN_EVALUATIONS_IN_16_BITS = [Fsdp2GathersMastersForAnEvaluation]
UPLOADED = [KeepsShardsThatItHasUploaded]
FROZEN = [KeepsWholeCopiesOfFrozenParameters, KeepsFrozenParametersThatItHasLoaded]
ACCUMULATED = [KeepsGradientsUntilTheUpdate]
