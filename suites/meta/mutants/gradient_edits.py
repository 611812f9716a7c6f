"""Engines that go wrong if the client edits gradients between the last backward of a step and its update.

Class of escape: a call between backward and step. Each is right if nobody changes a gradient.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch.distributed as dist

from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points

_GRADIENTS = Points("gradients", "norm", "skipped", "parameters", "model_parameters", "optimizer_state", "losses")


class EditsACopyOfTheGradients(Mutant):
    """At stages 1 and 2 the client writes to a copy, and the step reads the sums as they were."""

    points_at = _GRADIENTS

    def zero_gradients(self, names: Collection[str]) -> None:
        if self.scenario.stage not in (1, 2):
            super().zero_gradients(names)


class EditsTheFirstRanksGradients(Mutant):
    """The owners after the first keep the sums as they were."""

    points_at = _GRADIENTS

    def zero_gradients(self, names: Collection[str]) -> None:
        kept = [state.own_gradient.clone() for state in self.engine.states if state.unit.trainable]
        super().zero_gradients(names)
        if dist.get_rank(self.group):
            for state, values in zip((s for s in self.engine.states if s.unit.trainable), kept, strict=True):
                state.own_gradient.copy_(values)


class TakesTheNormBeforeTheEdit(Mutant):
    """Norm, overflow and clipping are those of the gradients before the edit."""

    points_at = Points("norm", "parameters", "model_parameters", "optimizer_state", "losses", "gradients")
    early: Any = None

    def sabotage(self) -> None:
        self.patch_check(lambda check: self.early or check)

    def zero_gradients(self, names: Collection[str]) -> None:
        engine = self.engine
        self.early = engine.stepper.check_gradients(engine.reducer.active, engine.leaves * engine.outcomes.scale)
        super().zero_gradients(names)

    def step(self) -> Outcome:
        try:
            return super().step()
        finally:
            self.early = None


class LeavesAnEditedParameterAlone(Mutant):
    """A gradient that the client has zeroed counts as none: neither decay nor momentum moves the parameter."""

    points_at = Points("parameters", "model_parameters", "optimizer_state", "losses", "gradients", "norm")

    def zero_gradients(self, names: Collection[str]) -> None:
        super().zero_gradients(names)
        edited = {id(self.trained[name]) for name in names}
        for state in self.engine.states:
            for slot in state.unit.slots:
                if id(slot.parameter) in edited:
                    self.engine.reducer.active[slot.index] = False


GRADIENT_EDITS = [
    EditsACopyOfTheGradients,
    EditsTheFirstRanksGradients,
    TakesTheNormBeforeTheEdit,
    LeavesAnEditedParameterAlone,
]
