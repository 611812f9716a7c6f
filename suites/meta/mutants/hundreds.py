"""Engines with a counter that is right up to some hundreds, or up to the bits of a word.

Class of escape: a counter that overflows. No draw has as many parameters, updates, good steps or leaves.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from zerobench.engine.optim.check import GradientCheck
from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.values import STEPPED, ValueMutant
from zerobench.suites.meta.points import Points


class FlagsParametersInAWord(ValueMutant):
    """The ranks agree on the parameters that have a gradient by a mask of 64 bits."""

    rare = "many blocks"
    points_at = STEPPED

    def sabotage(self) -> None:
        def masked(check: GradientCheck) -> GradientCheck:
            first = torch.arange(check.active.numel()) < 64
            return replace(check, active=check.active & first)

        self.patch_check(masked)


class AgreesOnUnitsInAWord(ValueMutant):
    """A mask of 64 bits has no place for the gradients of the units that come later."""

    rare = "more blocks than bits"
    points_at = Points("gradients", *STEPPED.parts)

    def sabotage(self) -> None:
        for name, parameter in self.trained.items():
            if name.startswith("blocks.64."):
                parameter.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]


class LoadsStepCountsByLetters(ValueMutant):
    """A load gives the step counts to the parameters in the order of their names: block 10 comes before block 2."""

    rare = "more blocks than bits"
    points_at = STEPPED

    def load(self, directory: Path) -> None:
        super().load(directory)
        named, counts = list(self.trained), self.engine.stepper.steps
        by_letters = sorted(named)
        self.engine.stepper.steps = [counts[named.index(name)] for name in by_letters]


class CountsUpdatesInAByte(ValueMutant):
    """After the 256th update Adam's bias correction begins anew."""

    rare = "hundreds of steps"
    points_at = STEPPED

    def sabotage(self) -> None:
        values = self.optimizer.values
        self.optimizer.values = lambda group, step: values(group, (step - 1) % 256 + 1)  # type: ignore[method-assign]


class CountsGoodStepsInAByte(ValueMutant):
    """A window of more than 256 steps never ends."""

    rare = "hundreds of steps"
    points_at = Points("loss_scale", *STEPPED.parts)

    def step(self) -> Outcome:
        scaler, scale = self.engine.scaler, self.engine.loss_scale
        outcome = super().step()
        if scaler._step - scaler._last_overflow > 256:
            scaler.scale = min(scaler.scale, scale)
        return outcome


class CountsLeavesIn16Bits(ValueMutant):
    """The sum is divided by a number of bf16, which has each integer up to 256."""

    rare = "hundreds of leaves"
    points_at = Points("gradients", "norm")

    def sabotage(self) -> None:
        self.patch_leaves(lambda leaves: float(torch.tensor(float(leaves)).bfloat16()))


#: Each is caught by the Scenario that it names in ``rare``.
HUNDREDS: list[type[ValueMutant]] = [
    FlagsParametersInAWord,
    AgreesOnUnitsInAWord,
    LoadsStepCountsByLetters,
    CountsUpdatesInAByte,
    CountsGoodStepsInAByte,
    CountsLeavesIn16Bits,
]
