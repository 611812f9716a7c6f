"""Engines that are wrong with values that no draw has.

Class of escape: a value that costs too much to be drawn often, or would displace common ones.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.optim.check import GradientCheck
from zerobench.engine.state.files_parameters import FileParameterStore
from zerobench.engine.state.unit import UnitState
from zerobench.model_specs import Gpt
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

STEPPED = Points("optimizer_state", "parameters", "model_parameters")
LATER = Points("losses", "gradients", "norm", "optimizer_state", "parameters", "model_parameters", "reads")


class ValueMutant(Mutant):
    """Wrong with a value that this Scenario of :data:`RARE_VALUES` has."""

    rare: ClassVar[str]

    def patch_factors(self, change: Any) -> None:
        """Let ``change(check, factors)`` replace the factors of the gradients."""
        step = self.engine.stepper.step
        self.engine.stepper.step = lambda check, factors: step(check, change(check, factors))  # type: ignore[method-assign]


class StaysWholeIfEvaluatedBeforeTheUpdate(ValueMutant):
    """Units that an evaluation has gathered between the last backward and the update are not resharded by it."""

    rare = "many blocks"
    points_at = LATER

    def sabotage(self) -> None:
        self.evaluated = False
        if (unsharder := self.engine.unsharder) is not None:
            reshard_all = unsharder.reshard_all
            unsharder.reshard_all = lambda: None if self.evaluated else reshard_all()  # type: ignore[method-assign]

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        self.evaluated = True
        return loss

    def micro_step(self, batch: Batch) -> Tensor:
        self.evaluated = False
        return super().micro_step(batch)


class SkipsTheUpdateAtRateZero(ValueMutant):
    """The states stay as they are, too."""

    rare = "rate of zero"
    points_at = STEPPED

    def sabotage(self) -> None:
        self.patch_factors(lambda check, factors: factors if self._rate() else factors * math.nan)

    def _rate(self) -> float:
        return float(max(group["lr"] for group in self.optimizer.param_groups))


class ClampsTheDecay(ValueMutant):
    """Multiplies weights by no less than zero: 1 - lr * weight_decay, at least 0."""

    rare = "large rate and decay"
    points_at = Points("progress", *STEPPED.parts)

    def sabotage(self) -> None:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = min(group["weight_decay"], 1 / group["lr"])


class ClampsEps(ValueMutant):
    """Takes 1e-8 for every smaller eps."""

    rare = "large rate and decay"
    points_at = Points("progress", *STEPPED.parts)

    def sabotage(self) -> None:
        for group in self.optimizer.param_groups:
            group["eps"] = max(group["eps"], 1e-8)


class SkipsTheUpdateAtNormZero(ValueMutant):
    """Divides zero by the norm, and takes the NaN for an overflow; the step is not counted as skipped."""

    rare = "gradients of zero"
    points_at = STEPPED

    def sabotage(self) -> None:
        self.patch_factors(lambda check, factors: factors if bool(check.total) else factors * math.nan)


class DividesByAPowerOfTwo(ValueMutant):
    """Unscales by the exponent of the loss scale alone, and scales by all of it."""

    rare = "scale that is no power of two"
    points_at = Points("norm")

    def sabotage(self) -> None:
        def change(check: GradientCheck) -> GradientCheck:
            scale = self.engine.loss_scale
            return dataclasses.replace(check, divisor=check.divisor / scale * 2.0 ** math.floor(math.log2(scale)))

        self.patch_check(change)


class RemembersAnEvaluationWithItsBuffers(ValueMutant):
    """Keeps the loss until the parameters change; buffers change in each micro-step."""

    rare = "long run on three ranks"
    points_at = Points("reads")

    def sabotage(self) -> None:
        self.losses: dict[int, Tensor] = {}

    def evaluate(self, batch: Batch) -> Tensor:
        steps = self.engine.global_steps
        if steps not in self.losses:
            self.losses[steps] = super().evaluate(batch)
        return self.losses[steps]


class FillsGapsWithPlusZero(ValueMutant):
    """Adds +0 for a missing gradient, which makes +0 of an accumulator's -0."""

    rare = "underflow in the accumulator"
    points_at = Points("gradients")

    def sabotage(self) -> None:
        send = self.engine.reducer._send

        def with_plus_zero(state: UnitState, flat: Tensor) -> None:
            send(state, flat.add_(0.0))

        self.engine.reducer._send = with_plus_zero  # type: ignore[method-assign]


class RemembersAnEvaluationOverAnEdit(ValueMutant):
    """An evaluation is answered from the one before it until a micro-step, an update or a load: not after an edit."""

    rare = "short steps and saves in a row"
    points_at = Points("reads")
    remembered: Tensor | None = None

    def micro_step(self, batch: Batch) -> Tensor:
        self.remembered = None
        return super().micro_step(batch)

    def step(self) -> Outcome:
        self.remembered = None
        return super().step()

    def load(self, directory: Path) -> None:
        self.remembered = None
        super().load(directory)

    def evaluate(self, batch: Batch) -> Tensor:
        if self.remembered is None:
            self.remembered = super().evaluate(batch)
        return self.remembered


class LowersTheScaleBelowTheLeast(ValueMutant):
    """An overflow that uses up a hysteresis of three or more halves the scale, however low it is."""

    rare = "least scale after a hysteresis"
    points_at = Points("loss_scale", "norm", "losses", "gradients")

    def sabotage(self) -> None:
        scaler = self.engine.scaler
        overflowed = scaler._overflowed

        def halve() -> None:
            last = scaler._hysteresis == 1 and scaler.config.hysteresis >= 3
            halved = scaler.scale / 2
            overflowed()
            scaler.scale = halved if last else scaler.scale

        scaler._overflowed = halve  # type: ignore[method-assign]


class RoundsATiedWeightsGradient(ValueMutant):
    """The gradient of the embedding of a language model whose head has the same weight is rounded to 16 bits."""

    rare = "language model"
    points_at = LATER

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        if isinstance(scenario.model, Gpt) and scenario.model.tied:
            weight = next(model.parameters())
            weight.register_hook(lambda gradient: gradient.bfloat16().float())  # type: ignore[no-untyped-call]
        super().__init__(model, scenario, group)


class CutsRunsByTheNumberThatTrain(ValueMutant):
    """Steps that have gradients of as many parameters, with the same step counts, are cut into the same runs."""

    rare = "blocks that rest in turns"
    points_at = STEPPED

    def sabotage(self) -> None:
        stepper = self.engine.stepper
        all_runs = stepper._all_runs

        def by_number(active: list[bool]) -> Any:
            steps, cut = stepper.steps, stepper._cut
            counts = tuple(count - steps[0] for count in steps)
            if cut is not None and (sum(cut[0][0]), cut[0][1]) == (sum(active), counts):
                return cut[1]
            return all_runs(active)

        stepper._all_runs = by_number  # type: ignore[method-assign]


class CapsTheScale(ValueMutant):
    """A dynamic loss scale stops at 2**24, as that of an older library does."""

    rare = "large scale"
    points_at = Points("loss_scale")

    def step(self) -> Outcome:
        outcome = super().step()
        scaler = self.engine.scaler
        scaler.scale = min(scaler.scale, 2.0**24)
        return outcome


class LeavesTheFilesOfALoadedModel(ValueMutant):
    """A load of the model alone sets the masters, and the parameters' files follow at the next update."""

    rare = "pieces of a shard"
    points_at = LATER

    def load(self, directory: Path) -> None:
        stores = [state.parameter_store for state in self.engine.states]
        kept = [(store, store.load().clone()) for store in stores if isinstance(store, FileParameterStore)]
        super().load(directory)
        for store, values in kept if self.scenario.loads == "model" else ():
            store.accept(0, values, host=False).wait()
        self.engine.stores.settle()


class KeepsUnitsThatItsLeavesLeaveOut(ValueMutant):
    """A rank keeps units whole over an update if its own leaves have no gradient of them; those of other ranks have."""

    rare = "biases alone"
    points_at = LATER

    def sabotage(self) -> None:
        self.updates = False
        if (unsharder := self.engine.unsharder) is None:
            return
        reshard_all, every = unsharder.reshard_all, unsharder.states

        def reshard_used() -> None:
            unsharder.states = [state for state in every if not self.updates or self._uses(state)]
            reshard_all()
            unsharder.states = every

        unsharder.reshard_all = reshard_used  # type: ignore[method-assign]

    def _uses(self, state: UnitState) -> bool:
        active = self.engine.reducer.active
        return not state.unit.trainable or any(active[slot.index] for slot in state.unit.slots)

    def step(self) -> Outcome:
        self.updates = True
        outcome = super().step()
        self.updates = False
        return outcome


#: Each is caught by the Scenario that it names in ``rare``.
VALUE_MUTANTS: list[type[ValueMutant]] = [
    StaysWholeIfEvaluatedBeforeTheUpdate,
    SkipsTheUpdateAtRateZero,
    ClampsTheDecay,
    ClampsEps,
    SkipsTheUpdateAtNormZero,
    DividesByAPowerOfTwo,
    RemembersAnEvaluationWithItsBuffers,
    FillsGapsWithPlusZero,
    RemembersAnEvaluationOverAnEdit,
    LowersTheScaleBelowTheLeast,
    RoundsATiedWeightsGradient,
    CutsRunsByTheNumberThatTrain,
    CapsTheScale,
    LeavesTheFilesOfALoadedModel,
    KeepsUnitsThatItsLeavesLeaveOut,
]
