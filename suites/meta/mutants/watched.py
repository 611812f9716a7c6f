"""Engines that are right only while they are watched, or wrong after it.

Class of escape: a state that nobody looks at, or that everybody looks at all the time.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zerobench.subject import Batch, Outcome, State
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_READ = Points("reads", "evaluation", "gradients", "parameters", "model_parameters", "optimizer_state")
_LATER = Points(
    "reads", "losses", "gradients", "norm", "skipped", "optimizer_state", "parameters", "model_parameters", "evaluation"
)


class _Watched(Mutant):
    points_at: ClassVar[Points] = _LATER

    def scale_gradients(self, factor: float) -> None:
        """Multiply every accumulator."""
        for state in self.engine.states:
            if state.unit.trainable and state.gradient is not None:
                state.gradient.mul_(factor)


class RightOnlyWhileGradientsAreRead(_Watched):
    read = False

    def gradients(self) -> State:
        self.read = True
        return super().gradients()

    def step(self) -> Outcome:
        factor = 1.0 if self.read else 2.0
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        self.read = False
        return outcome


class UnscalesAgainWhenRead(_Watched):
    def gradients(self) -> State:
        found = super().gradients()
        self.scale_gradients(0.5)
        return found


class ClearsGradientsWhenRead(_Watched):
    def gradients(self) -> State:
        found = super().gradients()
        self.scale_gradients(0.0)
        return found


class DividesAtEachReading(_Watched):
    points_at = _READ
    times = 0

    def gradients(self) -> State:
        self.times += 1
        return {name: g / self.times for name, g in super().gradients().items()}

    def step(self) -> Outcome:
        self.times = 0
        return super().step()


class RemembersTheFirstGradients(_Watched):
    points_at = _READ
    first: State | None = None

    def gradients(self) -> State:
        self.first = self.first or super().gradients()
        return self.first


class RemembersTheFirstParameters(_Watched):
    points_at = _READ
    first: State | None = None

    def parameters(self) -> State:
        self.first = self.first or super().parameters()
        return self.first


class RemembersParametersReadBeforeTheUpdate(_Watched):
    points_at = _READ
    kept: State | None = None

    def parameters(self) -> State:
        found = self.kept or super().parameters()
        self.kept = found
        return found

    def micro_step(self, batch: Batch) -> Tensor:
        self.kept = None
        return super().micro_step(batch)


class RemembersTheFirstStates(_Watched):
    points_at = _READ
    first: dict[str, State] | None = None

    def optimizer_state(self) -> dict[str, State]:
        self.first = self.first or super().optimizer_state()
        return self.first


class LeavesEvaluationMode(_Watched):
    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        self.model.eval()
        return loss


class LeavesBlocksInEvaluationMode(_Watched):
    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        self.model.get_submodule("blocks").eval()
        return loss


class EvaluatesInTrainingMode(_Watched):
    def evaluate(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            return self.engine(**batch)  # type: ignore[no-any-return]


class EvaluationMovesBuffers(_Watched):
    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        for buffer in (each for each in self.model.buffers() if each.is_floating_point()):
            buffer.mul_(0.5)
        return loss


class RemembersTheFirstEvaluation(_Watched):
    points_at = _READ
    loss: Tensor | None = None

    def evaluate(self, batch: Batch) -> Tensor:
        self.loss = super().evaluate(batch) if self.loss is None else self.loss
        return self.loss


class RemembersEvaluationsOfAStep(_Watched):
    points_at = _READ
    loss: Tensor | None = None

    def evaluate(self, batch: Batch) -> Tensor:
        self.loss = super().evaluate(batch) if self.loss is None else self.loss
        return self.loss

    def micro_step(self, batch: Batch) -> Tensor:
        self.loss = None
        return super().micro_step(batch)


class EvaluationClearsGradients(_Watched):
    def evaluate(self, batch: Batch) -> Tensor:
        self.scale_gradients(0.0)
        return super().evaluate(batch)


class EvaluationMovesTheLossScale(_Watched):
    def evaluate(self, batch: Batch) -> Tensor:
        if self.engine.scaler.dynamic:
            self.engine.scaler._step += 1
        return super().evaluate(batch)

    points_at = Points("loss_scale", "losses", "gradients", "norm", "skipped")


class EvaluationChangesTheRate(_Watched):
    def evaluate(self, batch: Batch) -> Tensor:
        self.scale_rates(0.5)
        return super().evaluate(batch)


class OtherRanksEvaluateWithoutBuffers(_Watched):
    points_at = _READ

    def evaluate(self, batch: Batch) -> Tensor:
        kept = [buffer.clone() for buffer in self.model.buffers()]
        for buffer in self.model.buffers():
            if self.group.rank():
                buffer.zero_()
        loss = super().evaluate(batch)
        for buffer, value in zip(self.model.buffers(), kept, strict=True):
            buffer.copy_(value)
        return loss


class LastRankEvaluatesAnotherBatch(_Watched):
    points_at = _READ

    def evaluate(self, batch: Batch) -> Tensor:
        last = self.group.rank() == self.group.size() - 1 > 0
        changed = {key: value + 1 if isinstance(value, Tensor) and last else value for key, value in batch.items()}
        return super().evaluate(changed)


class ReadingParametersRoundsMasters(_Watched):
    def parameters(self) -> State:
        found = super().parameters()
        self.edit_masters(lambda master: master.copy_(master.bfloat16()))
        return found


class ReadingStatesForgetsTheStepCount(_Watched):
    def optimizer_state(self) -> dict[str, State]:
        found = super().optimizer_state()
        self.engine.stepper.steps = [0] * len(self.engine.stepper.steps)
        return found


class ReadingTheModelEndsTheAccumulation(_Watched):
    def model_parameters(self) -> State:
        found = super().model_parameters()
        if not self.engine.is_gradient_accumulation_boundary():
            self.scale_gradients(0.0)
        return found


class ReadingTwiceMovesParameters(_Watched):
    times = 0

    def parameters(self) -> State:
        self.times += 1
        if self.times == 2:
            self.scale_rates(2.0)
        return super().parameters()

    def step(self) -> Outcome:
        self.times = 0
        return super().step()


class EvaluatesNoMoreThanItTrainsOn(_Watched):
    """Has memory for as many samples as a micro-step has."""

    points_at = _READ

    def evaluate(self, batch: Batch) -> Tensor:
        number = self.scenario.micro_batch
        return super().evaluate({key: v[:number] if isinstance(v, Tensor) else v for key, v in batch.items()})


WATCHED: list[type[Mutant]] = list(_Watched.__subclasses__())


class _AtAMoment(Mutant):
    """Wrong if an evaluation comes at a moment that this Scenario of :data:`RARE_VALUES` has."""

    rare: ClassVar[str] = "long run in fp16"
    points_at: ClassVar[Points] = _LATER


class EvaluationForgetsWhatHadGradients(_AtAMoment):
    """Between micro-steps it forgets which parameters the earlier ones have used."""

    def evaluate(self, batch: Batch) -> Tensor:
        accumulation = self.engine.accumulation
        if accumulation._micro_step and accumulation._pending is None:
            self.engine.reducer.active = [False] * len(self.engine.reducer.active)
        return super().evaluate(batch)


class EvaluationAfterASkipDelaysTheGrowth(_AtAMoment):
    """Takes the overflow of the last step for one of the next."""

    points_at = Points("loss_scale", "losses", "gradients", "norm", "skipped")
    skipped = False

    def step(self) -> Outcome:
        outcome = super().step()
        self.skipped = outcome.skipped
        return outcome

    def micro_step(self, batch: Batch) -> Tensor:
        self.skipped = False
        return super().micro_step(batch)

    def evaluate(self, batch: Batch) -> Tensor:
        if self.skipped and self.engine.scaler.dynamic:
            self.engine.scaler._last_overflow += 1
            self.skipped = False
        return super().evaluate(batch)


#: Each is caught by the Scenario that it names in ``rare``.
AT_A_MOMENT: list[type[_AtAMoment]] = list(_AtAMoment.__subclasses__())
