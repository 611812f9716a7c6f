"""Engines that go wrong with a training loop that is not one forward, one backward and nothing between the steps.

Class of escape: the client's calls. Each is right if a micro-step has one forward, the client sets no parameter and
freezes none in the middle of training, and all ranks build the same model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench.engine as zero
from zerobench.driver import model_for
from zerobench.recording import State
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points
from zerobench.workload.changes import first_block, trained
from zerobench.workload.forwards import loss_of, mirrored

_GRADIENTS = Points("gradients", "norm", "skipped", "losses", "reads", "parameters")
_VALUES = Points("parameters", "model_parameters", "losses", "gradients", "norm", "skipped", "optimizer_state", "reads")


class _OfForwards(Mutant):
    """Computes a micro-step's loss in a way of its own."""

    points_at = _GRADIENTS

    def micro_step(self, batch: Batch) -> Tensor:
        own = mock.patch("zerobench.subjects.reference.loss_of", lambda scenario, engine, batch: self.loss(batch))
        with own:
            return super().micro_step(batch)

    def loss(self, batch: Batch) -> Tensor:
        return loss_of(self.scenario, self.engine, batch)


class LosesTheFirstOfTwoForwards(_OfForwards):
    """The second forward replaces the graph of the first."""

    def loss(self, batch: Batch) -> Tensor:
        if self.scenario.forwards != "two":
            return super().loss(batch)
        first: Tensor = self.engine(**batch)
        second: Tensor = self.engine(**mirrored(batch))
        return (first.detach() + second) / 2


class CountsTwoForwardsAsTwoMicroSteps(_OfForwards):
    """Each forward divides its loss, so two for one backward count half."""

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        return loss.detach() + (loss - loss.detach()) / 2 if self.scenario.forwards == "two" else loss


class ReducesADroppedForward(_OfForwards):
    """A forward whose loss nobody uses leaves its gradient for the next backward."""

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if self.scenario.forwards != "dropped":
            return loss
        unused: Tensor = self.engine(**batch)
        return loss + (unused - unused.detach())


class GoesBackThroughTheLastForward(_OfForwards):
    """A forward without gradients, between another one and its backward, replaces what that has saved."""

    rare = "metric before the backward"

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if self.scenario.forwards != "metric":
            return loss
        last: Tensor = self.engine(**mirrored(batch))
        return loss.detach() + (last - last.detach())


class LosesTheBlockOfAForwardWithoutGradients(Mutant):
    """A forward without gradients takes the first block's hooks away, and the next forward does not set them."""

    points_at = _GRADIENTS

    def micro_step(self, batch: Batch) -> Tensor:
        own = trained(first_block(self.model)) if self.scenario.forwards == "no_grad" else []
        for parameter in own:
            parameter.requires_grad_(False)
        loss = super().micro_step(batch)
        for parameter in own:
            parameter.requires_grad_(True)
        return loss


class _OfFrozenSteps(Mutant):
    """Knows whether the first block is frozen now."""

    points_at = _VALUES

    @property
    def frozen(self) -> bool:
        return any(not parameter.requires_grad for parameter in self.trained.values())


class StepsAFrozenBlock(_OfFrozenSteps):
    """A frozen block's gradients are zeros, with which decay and momentum move it."""

    def sabotage(self) -> None:
        reducer = self.engine.reducer
        reducer._given_zeros = lambda: [True] * len(reducer.active)  # type: ignore[method-assign]

    def micro_step(self, batch: Batch) -> Tensor:
        self.engine.reducer.gives_zeros = self.frozen
        return super().micro_step(batch)


class StepsTheFrozenPartOfAUnit(StepsAFrozenBlock):
    """If some parameters of the head's unit are frozen, and others train, the frozen ones move on by their momentum."""

    rare = "biases alone"

    @property
    def frozen(self) -> bool:
        return len({p.requires_grad for name, p in self.trained.items() if name.startswith("head.")}) == 2


class NeverThawsABlock(_OfFrozenSteps):
    """A block that was frozen once receives no gradient any more."""

    cold: Any = ()

    def micro_step(self, batch: Batch) -> Tensor:
        self.cold = self.cold or [p for p in self.trained.values() if not p.requires_grad]
        for parameter in self.cold:
            parameter.requires_grad_(False)
        return super().micro_step(batch)


class ForgetsMomentsOfAFrozenBlock(_OfFrozenSteps):
    """A frozen block's optimizer states start anew."""

    def step(self) -> Outcome:
        outcome = super().step()
        _forget_moments(self, [p for p in self.trained.values() if not p.requires_grad])
        return outcome


class ForgetsMomentsOfALongRest(_OfFrozenSteps):
    """In the second step in a row in which a block is frozen, its optimizer states start anew."""

    rested = False

    def step(self) -> Outcome:
        outcome = super().step()
        if self.frozen and self.rested:
            _forget_moments(self, [p for p in self.trained.values() if not p.requires_grad])
        self.rested = self.frozen
        return outcome


def _forget_moments(engine: Mutant, parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        for name in engine.optimizer.state_names:
            zero.safe_set_full_optimizer_state(parameter, torch.zeros(parameter.shape), name)


class _OfEdits(Mutant):
    points_at = _VALUES


class EditsOnOneRankAlone(_OfEdits):
    """The ranks after the first keep their values."""

    def set_parameters(self, values: State) -> None:
        kept = {name: value for name, value in self.parameters().items() if name in values}
        super().set_parameters(values if dist.get_rank(self.group) == 0 else kept)


class LosesAnEditAtTheUpdate(_OfEdits):
    """The update starts from the master weights before the edit."""

    before: State | None = None

    def set_parameters(self, values: State) -> None:
        self.before = {name: value for name, value in self.parameters().items() if name in values}
        super().set_parameters(values)

    def step(self) -> Outcome:
        if self.before:
            super().set_parameters(self.before)
            self.before = None
        return super().step()


class LosesAnEditInPlace(_OfEdits):
    """If the client edits parameters in place, masters in host memory or in files keep their values."""

    rare = "changes in several steps"

    def set_parameters(self, values: State) -> None:
        kept = self.parameters()
        super().set_parameters(values)
        if self.scenario.edits_in_place and self.scenario.offload_optimizer != "none":
            for name in values:
                zero.safe_set_full_fp32_param(self.trained[name], kept[name])


class LosesAnEditAfterAnother(_OfEdits):
    """Of parameters that the client sets before two steps in a row, the second values are lost."""

    edited = before = False

    def set_parameters(self, values: State) -> None:
        self.edited = True
        if not self.before:
            super().set_parameters(values)

    def step(self) -> Outcome:
        self.edited, self.before = False, self.edited
        return super().step()


class ForgetsMomentsAtAnEdit(_OfEdits):
    """An edited parameter's optimizer states start anew."""

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        _forget_moments(self, [self.trained[name] for name in values])


class TakesEachRanksShard(Mutant):
    """The masters are this rank's own values, and not those of rank 0."""

    points_at = _VALUES

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        own = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        super().__init__(model, scenario, group)
        if scenario.ranks_differ:
            super().set_parameters(own)


class TakesTheLastRanksModel(Mutant):
    """The last rank is the source of the broadcast."""

    points_at = _VALUES

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        super().__init__(model_for(type(self), scenario, scenario.world - 1), scenario, group)


class KeepsEachRanksBuffers(Mutant):
    """The buffers are this rank's own at first, and not those of rank 0."""

    points_at = _VALUES

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        own = {name: buffer.clone() for name, buffer in model.named_buffers()}
        super().__init__(model, scenario, group)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(own[name])


TRAINING_LOOPS = [
    LosesTheFirstOfTwoForwards,
    CountsTwoForwardsAsTwoMicroSteps,
    ReducesADroppedForward,
    LosesTheBlockOfAForwardWithoutGradients,
    StepsAFrozenBlock,
    NeverThawsABlock,
    ForgetsMomentsOfAFrozenBlock,
    ForgetsMomentsOfALongRest,
    EditsOnOneRankAlone,
    LosesAnEditAtTheUpdate,
    LosesAnEditAfterAnother,
    ForgetsMomentsAtAnEdit,
    TakesEachRanksShard,
    TakesTheLastRanksModel,
    KeepsEachRanksBuffers,
]

#: Which a rare value catches.
IN_PLACE = [LosesAnEditInPlace]
#: So does another.
PARTLY_FROZEN: list[type[Mutant]] = [StepsTheFrozenPartOfAUnit]
BEFORE_THE_BACKWARD = [GoesBackThroughTheLastForward]
