"""Engines that go wrong if the client ends a step before all its micro-steps have come.

Class of escape: a step of another length. Each is right if every step has as many micro-steps as the configuration.
"""

from __future__ import annotations

from torch import Tensor

from zerobench.engine.engine import Engine
from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_GRADIENTS = Points("gradients", "norm", "skipped", "losses", "reads", "parameters", "optimizer_state")


class _OfShortSteps(Mutant):
    """Knows whether this step and the one before it are short."""

    points_at = _GRADIENTS
    short = after_short = False

    def set_micro_steps(self, number: int) -> None:
        self.after_short, self.short = self.short, number < self.scenario.accumulation
        super().set_micro_steps(number)


class DividesAShortStepByItsOwnLength(_OfShortSteps):
    """At stage 2 the mean is over the micro-steps that came; at the others it is over those of the configuration."""

    came = 0

    def set_micro_steps(self, number: int) -> None:
        super().set_micro_steps(number)
        self.came = number

    def sabotage(self) -> None:
        def leaves(engine: Engine) -> int:
            own = self.scenario.stage == 2 and self.short
            return engine.ranks.world * (self.came if own else engine.accumulation.divisor)

        self.engine.__class__ = type("Sabotaged", (Engine,), {"leaves": property(leaves)})


class LosesTheLastMicroStepOfAShortStep(_OfShortSteps):
    """The gradients of the micro-step at which a client ends the step are not sent any more."""

    def micro_step(self, batch: Batch) -> Tensor:
        ends = self.short and self.to_come == 1
        return super().micro_step({"scale": 0.0, **batch} if ends else batch)


class AddsAShortStepToTheNext(_OfShortSteps):
    """The sum of a short step is not forgotten: the first micro-step after it adds to it."""

    def micro_step(self, batch: Batch) -> Tensor:
        first = not self.engine.accumulation.begun
        if not (first and self.after_short and not self.short):
            return super().micro_step(batch)
        begin = self.engine.reducer.begin
        self.engine.reducer.begin = lambda first, last, loss: begin(False, last, loss)  # type: ignore[method-assign]
        try:
            return super().micro_step(batch)
        finally:
            self.engine.reducer.begin = begin  # type: ignore[method-assign]


class KeepsTheCountOverAShortStep(_OfShortSteps):
    """The micro-steps of a short step count for the next one, which ends too early."""

    points_at = Points(*_GRADIENTS.parts, "raised")

    def step(self) -> Outcome:
        begun = self.scenario.accumulation - 1 if self.short else 0
        outcome = super().step()
        self.engine.accumulation._micro_step += begun
        return outcome


class CountsAShortStepAsWhole(_OfShortSteps):
    """The counter of micro-steps grows by those of the configuration."""

    points_at = Points("progress")

    def step(self) -> Outcome:
        outcome = super().step()
        self.engine.accumulation.finished = self.engine.global_steps * self.scenario.accumulation
        return outcome


BOUNDARIES = [
    DividesAShortStepByItsOwnLength,
    LosesTheLastMicroStepOfAShortStep,
    AddsAShortStepToTheNext,
    KeepsTheCountOverAShortStep,
    CountsAShortStepAsWhole,
]
