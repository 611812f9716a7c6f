"""Engines on torch's DDP and FSDP2 that are wrong if two events come together; see rare_steps.py and rare_loads.py.

Class of escape: a combination of two values, each of which many draws have. For example, an evaluation between
micro-steps, in a step that the client ends early.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from zerobench.subject import Batch, State
from zerobench.subjects.torch_fsdp2 import TorchFsdp2
from zerobench.suites.meta.mutants.ddp import Ddp, count_good_steps
from zerobench.suites.meta.points import VALUES
from zerobench.workload.changes import first_block
from zerobench.workload.data import DTYPES


class SkipsASyncAfterAnEvaluationInAShortStep(Ddp):
    """If the client evaluates within a step that it ends early, its gradients stay on their ranks."""

    rare = "readings within short steps"
    points_at = VALUES
    evaluated = False

    def evaluate(self, batch: Batch) -> Tensor:
        self.evaluated = self.micro_steps > 0
        return super().evaluate(batch)

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        short = self.boundary < self.scenario.accumulation
        return super()._synchronizing(needed and not (self.evaluated and short))

    def _update(self) -> tuple[Tensor | None, bool]:
        self.evaluated = False
        return super()._update()


class LeavesABlockInEvaluationWithinAStep(Ddp):
    """After an evaluation between micro-steps the first block drops nothing until the update."""

    rare = "readings within short steps"
    points_at = VALUES

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        if self.micro_steps:
            first_block(self.model).eval()
        return loss

    def _update(self) -> tuple[Tensor | None, bool]:
        outcome = super()._update()
        self.module.train()
        return outcome


class SavesBuffersInTheModelsDtype(Ddp):
    """Buffers of fp32 are rounded to the dtype of the weights in what it saves."""

    rare = "buffers after a load"
    points_at = VALUES

    def save(self, directory: Path) -> None:
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers() if buffer.is_floating_point()]
        for buffer, value in kept:
            buffer.copy_(value.to(DTYPES[self.scenario.dtype]))
        super().save(directory)
        for buffer, value in kept:
            buffer.copy_(value)


class SkipsTheFirstBroadcastAfterALoad(Ddp):
    """The first forward after a load begins with the buffers that each rank has loaded."""

    rare = "buffers of rank 0 after a load"
    points_at = VALUES
    loaded = False

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.loaded = True

    def micro_step(self, batch: Batch) -> Tensor:
        assert isinstance(self.module, DistributedDataParallel)
        usual = self.module.broadcast_buffers
        self.module.broadcast_buffers = usual and not self.loaded
        loss = super().micro_step(batch)
        self.module.broadcast_buffers, self.loaded = usual, False
        return loss


class TakesARateOfZeroForNone(Ddp):
    """A rate that was zero in the saved engine is that of the configuration after the load."""

    rare = "rate and betas of zero over loads"
    points_at = VALUES

    def load(self, directory: Path) -> None:
        super().load(directory)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] or self.scenario.optimizer.lr


class TakesADecayOfZeroForNone(Ddp):
    """So is Adagrad's decay of the rate."""

    rare = "decay of the rate of zero over a load"
    points_at = VALUES

    def load(self, directory: Path) -> None:
        super().load(directory)
        for group in self.optimizer.param_groups:
            group["lr_decay"] = group["lr_decay"] or self.scenario.optimizer.lr_decay


class CountsNoShortStepTowardsGrowth(Ddp):
    """A step that the client ends early does not count as a good one for the loss scale."""

    rare = "growth over short steps"
    points_at = VALUES

    def _step(self, norm: Tensor | None) -> bool:
        skipped = super()._step(norm)
        if self._moving_scaler is not None and not skipped and self.boundary < self.scenario.accumulation:
            scaler = self._moving_scaler.scaler
            count_good_steps(scaler, max(0, scaler._get_growth_tracker() - 1))
        return skipped


class DecaysMomentumOnASkippedStep(Ddp):
    """A skipped step multiplies the buffers of SGD by the momentum."""

    rare = "least scale after a load"
    points_at = VALUES

    def _step(self, norm: Tensor | None) -> bool:
        skipped = super()._step(norm)
        for state in self.optimizer.state.values() if skipped else ():
            if state.get("momentum_buffer") is not None:
                state["momentum_buffer"].mul_(self.scenario.optimizer.momentum)
        return skipped


class DropsAGradientUnderAutocast(Ddp):
    """An evaluation within a step sets the gradient of the first parameter to zero if the client runs in autocast."""

    rare = "evaluations under autocast"
    points_at = VALUES

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        first = next(iter(self.working.values())).grad
        if first is not None and self.micro_steps and self.scenario.autocast:
            first.zero_()
        return loss


class EvaluatesWithCastsOfBeforeAnEdit(Ddp):
    """Under autocast an evaluation between an edit and the next forward has the values of before the edit."""

    rare = "evaluations under autocast"
    points_at = VALUES
    old: State | None = None

    def set_parameters(self, values: State) -> None:
        if self.scenario.autocast:
            self.old = self.old or _copies(self.working)
        super().set_parameters(values)

    def micro_step(self, batch: Batch) -> Tensor:
        self.old = None
        return super().micro_step(batch)

    def evaluate(self, batch: Batch) -> Tensor:
        now = _copies(self.working)
        _fill(self.working, self.old or now)
        loss = super().evaluate(batch)
        _fill(self.working, now)
        return loss


class MissesNarrowEditsAfterALoad(TorchFsdp2):
    """After a load it drops an edit of a parameter that has fewer rows than there are ranks."""

    rare = "edits after a load on three ranks"
    points_at = VALUES
    loaded = False

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.loaded = True

    def _set(self, parameter: Tensor, value: Tensor) -> None:
        narrow = value.dim() > 0 and value.shape[0] < self.scenario.world
        if not (self.loaded and narrow and isinstance(parameter, DTensor)):
            super()._set(parameter, value)


class KeepsAShortStepOnItsReplica(TorchFsdp2):
    """The gradients of a step that the client ends early are not added over the replicas of the shards."""

    rare = "replicas of the shards"
    points_at = VALUES

    def _synchronizing(self, needed: bool) -> AbstractContextManager[None]:
        synchronizes = super()._synchronizing(needed)
        if needed and self.boundary < self.scenario.accumulation and isinstance(self.module, FSDPModule):
            self.module.set_requires_all_reduce(False)
        return synchronizes


class ClipsByTheNormOfBeforeAnEdit(Ddp):
    """Clips by the norm of the gradients before the client's edit, unless somebody reads them after it."""

    points_at = VALUES
    norm: Tensor | None = None

    def zero_gradients(self, names: Collection[str]) -> None:
        self.norm = torch.nn.utils.get_total_norm([p.grad for p in self.masters.values() if p.grad is not None])
        super().zero_gradients(names)

    def gradients(self) -> State:
        self.norm = None
        return super().gradients()

    def _clip(self) -> Tensor | None:
        norm, self.norm = self.norm, None
        if norm is None or not self.scenario.clip or not norm.isfinite():
            return super()._clip()
        torch.nn.utils.clip_grads_with_norm_(self.masters.values(), self.scenario.clip, norm)
        return norm


class SavesWhatTheClientTrainsOnTo(TorchFsdp2):
    """An asynchronous save has the values that the tensors have while it writes."""

    points_at = VALUES

    def save(self, directory: Path) -> None:
        with mock.patch.object(state_dict_saver, "async_save", _Late):
            super().save(directory)


class _Late:
    """Saves when the client waits for the end of the save."""

    def __init__(self, state: dict[str, Any], **options: Any) -> None:
        self.result = partial(state_dict_saver.save, state, **options)


@torch.no_grad()
def _copies(parameters: Mapping[str, Tensor]) -> State:
    return {name: each.clone() for name, each in parameters.items()}


@torch.no_grad()
def _fill(parameters: Mapping[str, Tensor], values: State) -> None:
    for name, each in parameters.items():
        each.copy_(values[name])


#: Caught by the Scenario that they name in ``rare``.
TOGETHER: list[type[Ddp] | type[TorchFsdp2]] = [
    SkipsASyncAfterAnEvaluationInAShortStep,
    LeavesABlockInEvaluationWithinAStep,
    SavesBuffersInTheModelsDtype,
    SkipsTheFirstBroadcastAfterALoad,
    TakesARateOfZeroForNone,
    TakesADecayOfZeroForNone,
    CountsNoShortStepTowardsGrowth,
    DecaysMomentumOnASkippedStep,
    DropsAGradientUnderAutocast,
    EvaluatesWithCastsOfBeforeAnEdit,
    MissesNarrowEditsAfterALoad,
    KeepsAShortStepOnItsReplica,
]
#: Caught by draws, by the name of the property.
TOGETHER_IN_DRAWS: dict[str, list[type[Ddp] | type[TorchFsdp2]]] = {
    "test_outcomes_need_no_reader": [ClipsByTheNormOfBeforeAnEdit],
    "test_each_step_follows_over_any_load": [SavesWhatTheClientTrainsOnTo],
}
