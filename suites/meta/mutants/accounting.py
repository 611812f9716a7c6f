"""Engines that are right in every bit and cost more than they should; see plain.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class GathersTwice(Mutant):
    """Right, but the bytes are not those of the algorithm."""

    points_at = Points("traffic", name="recv")

    def sabotage(self) -> None:
        gather = self.engine.stepper._all_gather_updated
        self.engine.stepper._all_gather_updated = lambda state: gather(state) + gather(state)  # type: ignore[method-assign]


class KeepsTheWholeGradient(Mutant):
    """Claims stage 2 and holds the bytes of stage 1."""

    points_at = Points("resident", name="gradients")

    def resident(self) -> dict[str, Sequence[Tensor]]:
        held = super().resident()
        whole = [torch.zeros(state.unit.padded) for state in self.engine.states if state.unit.trainable]
        return {**held, "gradients": whole}


class LeavesAUnitWholeAfterAForwardWithoutGradients(Mutant):
    """No backward reshards a unit that such a forward has unsharded."""

    points_at = Points("resident", name="parameters")

    def resident(self) -> dict[str, Sequence[Tensor]]:
        held = super().resident()
        whole = [torch.zeros(self.engine.states[0].unit.padded)] if self.scenario.forwards == "no_grad" else []
        return {**held, "parameters": [*held["parameters"], *whole]}


class KeepsADroppedForward(Mutant):
    """Holds the loss of each forward until a backward takes it."""

    points_at = Points("undeclared", "growth")

    def sabotage(self) -> None:
        self.waiting: list[Tensor] = []

    def micro_step(self, batch: Batch) -> Tensor:
        if self.scenario.forwards == "dropped":
            self.waiting.append(self.engine(**batch))
        return super().micro_step(batch)


class HidesAState(Mutant):
    """Keeps a copy of every state outside the ledgers."""

    points_at = Points("undeclared")

    def sabotage(self) -> None:
        self.hidden = [state.parameter_store.load().clone() for state in self.engine.states]


class GrowsWithEveryStep(Mutant):
    """Leaks some bytes in each step."""

    points_at = Points("undeclared", "growth")

    def sabotage(self) -> None:
        self.leaked: list[Tensor] = []

    def step(self) -> Outcome:
        self.leaked.append(torch.ones(100))
        return super().step()


class HoldsTheFirstGradients(Mutant):
    """Reduces no gradient before the first backward has ended."""

    points_at = Points("unreduced", name="gradients", step=0)

    def sabotage(self) -> None:
        begin = self.engine.reducer.begin

        def timid(first: bool, last: bool, loss: Tensor | None) -> None:
            begin(first, last, loss)
            self.engine.reducer._plain = self.engine.micro_steps > 0

        self.engine.reducer.begin = timid  # type: ignore[method-assign]


#: Wrong in their declared bytes.
SPENDTHRIFTS: list[type[Mutant]] = [
    GathersTwice,
    KeepsTheWholeGradient,
    LeavesAUnitWholeAfterAForwardWithoutGradients,
]
#: Right in their declared bytes, and they keep more.
HOARDERS: list[type[Mutant]] = [HidesAState, GrowsWithEveryStep, KeepsADroppedForward]
