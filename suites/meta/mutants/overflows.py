"""Engines that do not see that a finite gradient is too large for fp16, or that see an overflow where none is.

Class of escape: a value that no draw has. Each is right if a gradient that is not finite is so where it is computed,
and stays so until the update.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from zerobench.engine.ops.folding import fold
from zerobench.engine.optim.check import GradientCheck
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_MOST = torch.finfo(torch.float16).max


class _Saturates(Mutant):
    rare: ClassVar[str]
    points_at: ClassVar[Points] = Points("skipped", "norm", "gradients")


class SaturatesOnTheWire(_Saturates):
    """A cast to fp16 gives its largest number, as some casts to 8 bits do."""

    rare = "overflow on the wire"

    def sabotage(self) -> None:
        wire = self.engine.reducer.wire
        if self.scenario.communication_dtype == "fp16" != self.scenario.dtype:
            encode, wire.packed = wire.encode, torch.float32
            wire.encode = lambda values: encode(_saturated(values))  # type: ignore[method-assign]


class SaturatesInTheAccumulator(_Saturates):
    """So does the rounding of a sum that waits for the next micro-step."""

    rare = "overflow in the accumulator"

    def sabotage(self) -> None:
        def low(accumulator: Tensor, contributions: Tensor, *, first: bool) -> None:
            total = accumulator.float()
            fold(total, contributions, first=first)
            accumulator.copy_(_saturated(total) if accumulator.dtype == torch.float16 else total)

        self.patch_fold(low)


class TakesLargeSquaresForAnOverflow(_Saturates):
    """The sum of squares is looked at in fp32, in which it may be infinite though all gradients are finite."""

    rare = "large gradients"

    def sabotage(self) -> None:
        self.patch_check(lambda check: replace(check, overflow=~check.total.float().isfinite()))


class KeepsAnOverflowThatIsTakenAway(_Saturates):
    """Looks for an overflow as gradients arrive, and not again once the client has made zeros of them."""

    rare = "overflow that the client takes away"
    found = False

    def zero_gradients(self, names: Collection[str]) -> None:
        self.found = not all(bool(gradient.isfinite().all()) for gradient in self.gradients().values())
        super().zero_gradients(names)

    def sabotage(self) -> None:
        def kept(check: GradientCheck) -> GradientCheck:
            found, self.found = self.found, False
            return replace(check, overflow=check.overflow | found)

        self.patch_check(kept)


class DecidesByItsOwnShard(_Saturates):
    """In fp32 each rank looks at its part of the gradients alone, and some step though others skip."""

    rare = "overflow of fp32 on the wire"
    points_at = Points("skipped", "parameters", "model_parameters", "optimizer_state", "losses", "gradients")

    def sabotage(self) -> None:
        stepper, shards = self.engine.stepper, self.scenario.dtype == "fp32" and self.scenario.stage > 0
        if shards:
            self.patch_check(lambda check: replace(check, overflow=~stepper._sums().sum(0, keepdim=True).isfinite()))


def _saturated(values: Tensor) -> Tensor:
    """Finite values, within the range of fp16; the others as they are."""
    return torch.where(values.isfinite(), values.clamp(-_MOST, _MOST), values)


#: Each is caught by the Scenario that it names in ``rare``.
OVERFLOWS: list[type[_Saturates]] = list(_Saturates.__subclasses__())
