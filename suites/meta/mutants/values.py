"""Engines that are wrong with values that no draw has.

Class of escape: a value that costs too much to be drawn often, or would displace common ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.engine.optim.check import GradientCheck
from zerobench.engine.state.files_parameters import FileParameterStore
from zerobench.engine.state.unit import UnitState
from zerobench.model_specs import Gpt
from zerobench.scenario import Scenario
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import VALUES, Points

_STEPPED = Points("optimizer_state", "parameters", "model_parameters")
_LATER = Points("losses", "gradients", "norm", "optimizer_state", "parameters", "model_parameters", "reads")


class _Value(Mutant):
    """Wrong with a value that this Scenario of :data:`RARE_VALUES` has."""

    rare: ClassVar[str]

    def patch_factors(self, change: Any) -> None:
        """Let ``change(check, factors)`` replace the factors of the gradients."""
        step = self.engine.stepper.step
        self.engine.stepper.step = lambda check, factors: step(check, change(check, factors))  # type: ignore[method-assign]


class HasMemoryForEightUnits(_Value):
    """Every unit from the ninth on is whole in name only: its values are zeros."""

    rare = "many blocks"
    points_at = _LATER

    def sabotage(self) -> None:
        unsharder = self.engine.unsharder
        if unsharder is None:
            return
        arrive = unsharder._arrive

        def arrive_in_eight(state: UnitState) -> None:
            arrive(state)
            if state.unit.index >= 8:
                state.full.zero_()

        unsharder._arrive = arrive_in_eight  # type: ignore[method-assign]


class StaysWholeIfEvaluatedBeforeTheUpdate(_Value):
    """Units that an evaluation has gathered between the last backward and the update are not resharded by it."""

    rare = "many blocks"
    points_at = _LATER

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


class IndexesIn16Bits(_Value):
    """Loses the gradient of a parameter's elements from 2**16 on."""

    rare = "large parameter"
    points_at = Points("gradients", name="stem.weight")

    def sabotage(self) -> None:
        for p in self.model.parameters():
            if p.requires_grad and p.numel() > 1 << 16:
                p.register_hook(_first_elements)  # type: ignore[no-untyped-call]


class ReadsTwoPieces(_Value):
    """Of a shard in a file the third buffer's values never arrive."""

    rare = "pieces of a shard"
    points_at = _LATER

    def sabotage(self) -> None:
        for state in self.engine.states:
            if isinstance(store := state.parameter_store, FileParameterStore):
                store.load = partial(self._load_two, store.load, 2 * store._width)  # type: ignore[method-assign]

    @staticmethod
    def _load_two(load: Callable[[], Tensor], elements: int) -> Tensor:
        shard = load()
        shard[elements:] = 0
        return shard


class SkipsTheUpdateAtRateZero(_Value):
    """The states stay as they are, too."""

    rare = "rate of zero"
    points_at = _STEPPED

    def sabotage(self) -> None:
        self.patch_factors(lambda check, factors: factors if self._rate() else factors * math.nan)

    def _rate(self) -> float:
        return float(max(group["lr"] for group in self.optimizer.param_groups))


class ClampsTheDecay(_Value):
    """Multiplies weights by no less than zero: 1 - lr * weight_decay, at least 0."""

    rare = "large rate and decay"
    points_at = _STEPPED

    def sabotage(self) -> None:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = min(group["weight_decay"], 1 / group["lr"])


class ClampsEps(_Value):
    """Takes 1e-8 for every smaller eps."""

    rare = "large rate and decay"
    points_at = _STEPPED

    def sabotage(self) -> None:
        for group in self.optimizer.param_groups:
            group["eps"] = max(group["eps"], 1e-8)


class SkipsTheUpdateAtNormZero(_Value):
    """Divides zero by the norm, and takes the NaN for an overflow; the step is not counted as skipped."""

    rare = "gradients of zero"
    points_at = _STEPPED

    def sabotage(self) -> None:
        self.patch_factors(lambda check, factors: factors if bool(check.total) else factors * math.nan)


class DividesByAPowerOfTwo(_Value):
    """Unscales by the exponent of the loss scale alone, and scales by all of it."""

    rare = "scale that is no power of two"
    points_at = Points("norm")

    def sabotage(self) -> None:
        def change(check: GradientCheck) -> GradientCheck:
            scale = self.engine.loss_scale
            return dataclasses.replace(check, divisor=check.divisor / scale * 2.0 ** math.floor(math.log2(scale)))

        self.patch_check(change)


class LosesTheFifthMicroStep(_Value):
    """Has four buffers for the sums of micro-steps."""

    rare = "scale that is no power of two"
    points_at = Points("gradients")

    def sabotage(self) -> None:
        begin = self.engine.reducer.begin
        self.nth = 0

        def count(first: bool, last: bool, loss: Tensor | None) -> None:
            self.nth = 1 if first else self.nth + 1
            begin(first, last, loss)

        self.engine.reducer.begin = count  # type: ignore[method-assign]
        for p in self.model.parameters():
            if p.requires_grad:
                p.register_hook(lambda gradient: gradient * 0 if self.nth > 4 else gradient)  # type: ignore[no-untyped-call]


class CountsMicroStepsInFourBits(_Value):
    """Takes the seventeenth micro-step for the first, and starts its sum anew."""

    rare = "many micro-steps"
    points_at = Points("gradients", "reads")

    def sabotage(self) -> None:
        begin, self.nth = self.engine.reducer.begin, 0

        def count(first: bool, last: bool, loss: Tensor | None) -> None:
            self.nth = 0 if first else (self.nth + 1) % 16
            begin(self.nth == 0, last, loss)

        self.engine.reducer.begin = count  # type: ignore[method-assign]


class MovesParametersAtTheThirdBadStep(_Value):
    """From the third bad step on, also with good ones between them, parameters are restored from a copy in bf16."""

    rare = "long run in fp32"
    points_at = _LATER

    def step(self) -> Outcome:
        outcome = super().step()
        if outcome.skipped and self.engine.skipped_steps >= 3:
            self.edit_masters(lambda master: master.copy_(master.bfloat16()))
        return outcome


class CountsEachBadLeaf(_Value):
    """Takes two leaves that overflow in one step for two overflows."""

    rare = "long run in fp16"
    points_at = Points("loss_scale")

    def sabotage(self) -> None:
        self.bad = torch.zeros(1)
        self.patch_check(self._count)
        update = self.engine.scaler.update

        def update_for_each(overflow: bool) -> None:
            for _ in range(self.counted if overflow else 1):
                update(overflow)

        self.engine.scaler.update = update_for_each  # type: ignore[method-assign]

    def _count(self, check: GradientCheck) -> GradientCheck:
        dist.all_reduce(self.bad, group=self.group)
        self.counted = max(1, int(self.bad))
        self.bad.zero_()
        return check

    def micro_step(self, batch: Batch) -> Tensor:
        loss = super().micro_step(batch)
        self.bad += not bool(loss.isfinite())
        return loss


class KeepsTwoBitsOfTheWindow(_Value):
    """Takes windows of three steps for longer ones."""

    rare = "long run in fp16"
    points_at = Points("loss_scale")

    def sabotage(self) -> None:
        config = self.engine.scaler.config
        window = min(config.loss_scale_window, 3)
        self.engine.scaler.config = config.model_copy(update={"loss_scale_window": window})


class AllowsThreeOverflows(_Value):
    """Takes a hysteresis of three for a larger one."""

    rare = "long run in fp16"
    points_at = Points("loss_scale")

    def sabotage(self) -> None:
        scaler = self.engine.scaler
        scaler._hysteresis = min(scaler._hysteresis, 3)
        scaler.config = scaler.config.model_copy(update={"hysteresis": scaler._hysteresis})


class LosesMicroStepsLate(_Value):
    """From the sixth step on, keeps the last micro-step only."""

    rare = "long run on three ranks"
    points_at = Points("gradients", step=5)

    def sabotage(self) -> None:
        begin = self.engine.reducer.begin

        def forgetful(first: bool, last: bool, loss: Tensor | None) -> None:
            begin(first, last, loss)
            if self.engine.global_steps >= 5:
                self.engine.reducer.backward.first = True

        self.engine.reducer.begin = forgetful  # type: ignore[method-assign]


class RemembersAnEvaluationWithItsBuffers(_Value):
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


class FillsGapsWithPlusZero(_Value):
    """Adds +0 for a missing gradient, which makes +0 of an accumulator's -0."""

    rare = "underflow in the accumulator"
    points_at = Points("gradients")

    def sabotage(self) -> None:
        send = self.engine.reducer._send

        def with_plus_zero(state: UnitState, flat: Tensor) -> None:
            send(state, flat.add_(0.0))

        self.engine.reducer._send = with_plus_zero  # type: ignore[method-assign]


class RemembersAnEvaluationOverAnEdit(_Value):
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


class AveragesTheSecondShortStepOverItsMicroSteps(_Value):
    """Right in the first of two short steps in a row."""

    rare = "short steps and saves in a row"
    points_at = _LATER
    short = False
    own = 0  # the micro-steps of the second one

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: self.engine.ranks.world * self.own if self.own else leaves)

    def set_micro_steps(self, number: int) -> None:
        short = number < self.scenario.accumulation
        self.own = number if short and self.short else 0
        self.short = short
        super().set_micro_steps(number)


class KeepsTheSecondSaveAsTheLatest(_Value):
    """The third save to a directory does not become the one that a load takes."""

    rare = "short steps and saves in a row"
    points_at = VALUES

    def save(self, directory: Path) -> None:
        saved = sum(each.is_dir() for each in directory.iterdir())
        dist.barrier(self.group)
        self.engine.save_checkpoint(directory, client_state=dict(self.client_state), save_latest=saved != 2)


class LowersTheScaleBelowTheLeast(_Value):
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


class RoundsATiedWeightsGradient(_Value):
    """The gradient of the embedding of a language model whose head has the same weight is rounded to 16 bits."""

    rare = "language model"
    points_at = _LATER

    def __init__(self, model: nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        if isinstance(scenario.model, Gpt) and scenario.model.tied:
            weight = next(model.parameters())
            weight.register_hook(lambda gradient: gradient.bfloat16().float())  # type: ignore[no-untyped-call]
        super().__init__(model, scenario, group)


class LoadsTheLastNameByLetters(_Value):
    """Of the checkpoints in a directory; so the ninth comes after the eleventh."""

    rare = "twenty steps"
    points_at = Points("progress", *_LATER.parts)

    def load(self, directory: Path) -> None:
        tags = sorted(path.name for path in directory.iterdir() if path.is_dir())
        _, self.client_state = self.engine.load_checkpoint(directory, tag=tags[-1])


class EndsItsScheduleAfterTenUpdates(_Value):
    rare = "twenty steps with momentum"
    points_at = Points("progress", *_STEPPED.parts)

    def step(self) -> Outcome:
        last, scheduler = self.rates(), self.engine.lr_scheduler
        outcome = super().step()
        if scheduler is not None and scheduler.last_epoch > 10:
            self.set_rates(last)
        return outcome


class AveragesOverFourRanks(Mutant):
    """Counts at most four ranks."""

    points_at = Points("gradients")

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: min(leaves, 4 * self.engine.gradient_accumulation_steps))


#: Each is caught by the Scenario that it names in ``rare``.
VALUE_MUTANTS: list[type[_Value]] = [
    HasMemoryForEightUnits,
    StaysWholeIfEvaluatedBeforeTheUpdate,
    IndexesIn16Bits,
    ReadsTwoPieces,
    SkipsTheUpdateAtRateZero,
    ClampsTheDecay,
    ClampsEps,
    SkipsTheUpdateAtNormZero,
    DividesByAPowerOfTwo,
    LosesTheFifthMicroStep,
    CountsMicroStepsInFourBits,
    MovesParametersAtTheThirdBadStep,
    CountsEachBadLeaf,
    KeepsTwoBitsOfTheWindow,
    AllowsThreeOverflows,
    LosesMicroStepsLate,
    RemembersAnEvaluationWithItsBuffers,
    FillsGapsWithPlusZero,
    RemembersAnEvaluationOverAnEdit,
    AveragesTheSecondShortStepOverItsMicroSteps,
    KeepsTheSecondSaveAsTheLatest,
    LowersTheScaleBelowTheLeast,
    RoundsATiedWeightsGradient,
    LoadsTheLastNameByLetters,
    EndsItsScheduleAfterTenUpdates,
]


def _first_elements(gradient: Tensor) -> Tensor:
    kept = gradient.clone()
    kept.view(-1)[1 << 16 :] = 0
    return kept
