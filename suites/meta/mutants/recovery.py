"""Engines that go wrong at a bad step, or at the good one after it.

Class of escape: a sequence of steps that is never drawn.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
import torch.distributed as dist

from zerobench.engine.optim.check import GradientCheck
from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_LATER = Points("losses", "gradients", "norm", "skipped", "optimizer_state", "parameters", "model_parameters", "reads")
_SCALE = Points("loss_scale")


class _Recovery(Mutant):
    points_at: ClassVar[Points] = _LATER
    bad_steps = 0  # in a row, before this step

    def step(self) -> Outcome:
        outcome = super().step()
        self.bad_steps = self.bad_steps + 1 if outcome.skipped else 0
        if outcome.skipped:
            self.after_bad_step()
        return outcome

    def after_bad_step(self) -> None:
        """Break something."""


class LooksForInfinitiesAlone(_Recovery):
    """A NaN is no overflow if no gradient on any rank is infinite."""

    def sabotage(self) -> None:
        self.patch_check(self._without_nan)

    def _without_nan(self, check: GradientCheck) -> GradientCheck:
        parts = [state.own_gradient for state in self.engine.states if state.unit.trainable]
        infinite = torch.tensor(float(any(bool(part.isinf().any()) for part in parts)))
        dist.all_reduce(infinite, group=self.group)
        return dataclasses.replace(check, overflow=check.overflow & bool(infinite))


class CountsASkippedStep(_Recovery):
    def after_bad_step(self) -> None:
        self.engine.stepper.steps = [step + 1 for step in self.engine.stepper.steps]


class ForgetsTheStepCountAfterASkip(_Recovery):
    def after_bad_step(self) -> None:
        self.engine.stepper.steps = [0] * len(self.engine.stepper.steps)


class HalvesTheRateAfterASkip(_Recovery):
    points_at = Points(*_LATER.parts, "progress")

    def after_bad_step(self) -> None:
        self.scale_rates(0.5)


class RoundsMastersAtASkip(_Recovery):
    def after_bad_step(self) -> None:
        self.edit_masters(lambda master: master.copy_(master.bfloat16()))


class LeavesTrainingModeAtASkip(_Recovery):
    def after_bad_step(self) -> None:
        self.model.eval()


class DecaysAtASkip(_Recovery):
    def after_bad_step(self) -> None:
        self.edit_masters(lambda master: master.mul_(1 - 2**-10))


class SkipsTheStepAfterABadOneToo(_Recovery):
    points_at = Points("skipped")

    def sabotage(self) -> None:
        self.patch_check(lambda check: dataclasses.replace(check, overflow=check.overflow | (self.bad_steps > 0)))


class AppliesTheSecondBadStepInARow(_Recovery):
    points_at = Points("skipped")

    def sabotage(self) -> None:
        self.patch_check(lambda check: dataclasses.replace(check, overflow=check.overflow & (self.bad_steps == 0)))


class ChecksOverflowInFp16Only(_Recovery):
    points_at = Points("skipped")

    def sabotage(self) -> None:
        half = self.engine.config.dtype is torch.float16
        self.patch_check(lambda check: dataclasses.replace(check, overflow=check.overflow & half))


class ChecksTheFirstStepsOnly(_Recovery):
    points_at = Points("skipped")

    def sabotage(self) -> None:
        def early(check: GradientCheck) -> GradientCheck:
            return dataclasses.replace(check, overflow=check.overflow & (self.engine.global_steps < 2))

        self.patch_check(early)


class RefillsHysteresisAtAnOverflow(_Recovery):
    points_at = _SCALE

    def after_bad_step(self) -> None:
        self.engine.scaler._hysteresis = self.engine.scaler.config.hysteresis


class QuartersTheScale(_Recovery):
    points_at = _SCALE

    def sabotage(self) -> None:
        scaler = self.engine.scaler
        overflowed = scaler._overflowed

        def twice() -> None:
            before = scaler.scale
            overflowed()
            if scaler.scale < before:
                scaler.scale = max(scaler.scale / 2, scaler.config.min_loss_scale)

        scaler._overflowed = twice  # type: ignore[method-assign]


class GrowsAgainRightAfterAnOverflow(_Recovery):
    points_at = _SCALE

    def sabotage(self) -> None:
        scaler = self.engine.scaler
        stepped = scaler._stepped

        def forgetful() -> None:
            scaler._last_overflow = min(scaler._last_overflow, scaler._step - 2)
            stepped()

        scaler._stepped = forgetful  # type: ignore[method-assign]


class GrowsWithoutRefillingHysteresis(_Recovery):
    points_at = _SCALE

    def sabotage(self) -> None:
        scaler = self.engine.scaler
        stepped = scaler._stepped

        def poor() -> None:
            before = scaler._hysteresis
            stepped()
            scaler._hysteresis = before

        scaler._stepped = poor  # type: ignore[method-assign]


class DoublesTheScaleOneStepLate(_Recovery):
    points_at = _SCALE

    def sabotage(self) -> None:
        self.engine.scaler._last_overflow += 1


class FloorsTheScaleAtOne(_Recovery):
    points_at = _SCALE

    def sabotage(self) -> None:
        scaler = self.engine.scaler
        overflowed = scaler._overflowed

        def floored() -> None:
            overflowed()
            scaler.scale = max(scaler.scale, 1.0)

        scaler._overflowed = floored  # type: ignore[method-assign]


class NeedsTwoBadStepsToSkip(_Recovery):
    points_at = Points("skipped")
    seen = 0

    def sabotage(self) -> None:
        def second(check: GradientCheck) -> GradientCheck:
            self.seen += int(check.overflow)
            return dataclasses.replace(check, overflow=check.overflow & (self.seen > 1))

        self.patch_check(second)


RECOVERY: list[type[Mutant]] = list(_Recovery.__subclasses__())
