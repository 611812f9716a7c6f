"""Engines that share a state with the other engines of their process.

Class of escape: only one engine is ever alive, and no engine follows another.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from zerobench.subject import Batch, Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _Shared(Mutant):
    points_at: ClassVar[Points] = Points(
        "losses", "gradients", "norm", "skipped", "loss_scale", "optimizer_state", "parameters", "model_parameters",
        "reads", "evaluation", "progress",
    )  # fmt: skip
    alive: ClassVar[list[Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.alive = []

    def sabotage(self) -> None:
        self.alive.append(self)
        self.join(self.alive[0])

    def join(self, first: Any) -> None:
        """Take something of the engine that was built first and is alive."""

    def close(self) -> None:
        self.alive.remove(self)
        super().close()


class SharesTheLossScaler(_Shared):
    def join(self, first: Any) -> None:
        self.engine.scaler = first.engine.scaler


class SharesTheStepCounts(_Shared):
    def join(self, first: Any) -> None:
        if len(first.engine.stepper.steps) == len(self.engine.stepper.steps):
            self.engine.stepper.steps = first.engine.stepper.steps


class SharesTheReadingsOfAUnit(_Shared):
    evaluations: ClassVar[dict[int, Tensor]] = {}

    def evaluate(self, batch: Batch) -> Tensor:
        return self.evaluations.setdefault(self.engine.global_steps, super().evaluate(batch))

    def close(self) -> None:
        super().close()
        if not self.alive:
            self.evaluations.clear()


class TakesTheFirstEnginesRates(_Shared):
    def step(self) -> Outcome:
        for mine, first in zip(self.optimizer.param_groups, self.alive[0].optimizer.param_groups, strict=False):
            mine["lr"] = first["lr"]
        return super().step()


class TakesTheFirstEnginesClipping(_Shared):
    def join(self, first: Any) -> None:
        self.engine.config = self.engine.config.model_copy(
            update={"gradient_clipping": first.engine.config.gradient_clipping}
        )


class ClosingChangesTheOthersDecay(_Shared):
    def close(self) -> None:
        super().close()
        for other in self.alive:
            for group in other.optimizer.param_groups:
                group["weight_decay"] = 0.5


class ClosingChangesTheMastersOfOlderEngines(_Shared):
    def close(self) -> None:
        older = self.alive[: self.alive.index(self)]
        super().close()
        for each in older:
            each.edit_masters(lambda master: master.mul_(1 - 2**-10))


class StepsForTheEngineOfTheLastBackward(_Shared):
    """The rates are twice as large if another engine of the process has had the last backward."""

    last: ClassVar[Any] = None

    def micro_step(self, batch: Batch) -> Tensor:
        type(self).last = self
        return super().micro_step(batch)

    def step(self) -> Outcome:
        factor = 1.0 if type(self).last is self else 2.0
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome

    def close(self) -> None:
        super().close()
        type(self).last = None


SHARED: list[type[Mutant]] = list(_Shared.__subclasses__())
