"""Engines that are wrong beside code of the client: threads, errors that it catches, and hooks that it sets.

Class of escape: code of the client that no property runs. Every draw trains in the thread that has built the engine,
and nothing in a forward raises.
"""

from __future__ import annotations

import threading

from torch import Tensor

from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.client import LATER
from zerobench.suites.meta.mutants.plain import Mutant


class StepsByTheSettingsOfItsThread(Mutant):
    """Keeps a setting of the update in the thread that has built it; the others have another one."""

    points_at = LATER

    def sabotage(self) -> None:
        self.of_thread = threading.local()
        self.of_thread.factor = 1.0

    def step(self) -> Outcome:
        factor = getattr(self.of_thread, "factor", 2.0)
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome


class CountsAForwardThatRaised(Mutant):
    """The gradients of the next micro-step count twice, as if the forward that raised had had a backward."""

    points_at = LATER
    raised = False

    def micro_step(self, batch: Batch) -> Tensor:
        again, self.raised = self.raised, True
        loss = super().micro_step({**batch, "scale": 2.0 * batch.get("scale", 1.0)} if again else batch)
        self.raised = False
        return loss / 2 if again else loss


class GoesOnAfterABackwardThatRaised(Mutant):
    """Adds to the gradients that a backward had made before it raised."""

    points_at = LATER

    def sabotage(self) -> None:
        self.engine._check_whole = lambda: None  # type: ignore[method-assign]


class DropsHooksOfParameters(Mutant):
    """Hooks that the client has set before the engine is built are lost, as if it had made parameters of its own."""

    points_at = LATER

    def sabotage(self) -> None:
        for parameter in self.trained.values():
            if parameter._backward_hooks:
                parameter._backward_hooks.clear()


#: By what the client does.
IN_THREADS: list[type[Mutant]] = [StepsByTheSettingsOfItsThread]
AFTER_FAILURES: list[type[Mutant]] = [CountsAForwardThatRaised, GoesOnAfterABackwardThatRaised]
WITHOUT_HOOKS: list[type[Mutant]] = [DropsHooksOfParameters]
