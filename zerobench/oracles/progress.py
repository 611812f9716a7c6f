"""Progress: the counters of a run and the hyperparameters in force, and the changes of both by a load."""

from __future__ import annotations

import torch

from zerobench.driver import changed_factors
from zerobench.oracles.rules import hyperparameters
from zerobench.recording import State
from zerobench.scenario import Scenario, scaled
from zerobench.workload.groups import scheduled_values, specs


class Progress:
    """The counters of a run and the factors of its scheduled hyperparameters.

    A load of all states goes on with both. If a load leaves the optimizer out, the hyperparameters are those of the new
    engine until its client or its scheduler sets them. A load of the model alone also begins to count at zero.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.steps = self.micro_steps = self.skipped = self.updates = 0
        self.factors: list[dict[str, float]] = []
        self._begin()

    def _begin(self) -> None:
        """The factors of a new engine; a scheduler has set its first rate."""
        names = self.scenario.schedules
        self.factors = [dict.fromkeys(names, 1.0) for _ in specs(self.scenario.optimizer)]
        if self.scenario.engine_schedules:
            self._schedule(0)

    def _schedule(self, updates: int) -> None:
        for group, factors in enumerate(self.factors):
            factors["lr"] = self.scenario.factors(updates, group)["lr"]

    def load(self) -> None:
        """A new engine loads the part that the Scenario names."""
        if self.scenario.loads == "model":
            self.steps = self.micro_steps = self.skipped = self.updates = 0
        if self.scenario.loads != "all":
            self._begin()

    def begin(self, step: int) -> None:
        """The client sets the hyperparameters that change in a step."""
        for group, factors in enumerate(self.factors):
            factors.update(changed_factors(self.scenario, step, group))

    def end(self, step: int, skipped: bool) -> None:
        """A step ends."""
        self.steps += 1
        self.micro_steps += self.scenario.micro_steps_of(step)
        self.skipped += skipped
        if not skipped:
            self.updates += 1
            if self.scenario.engine_schedules:
                self._schedule(self.updates)

    def in_force(self) -> State:
        """The scheduled hyperparameters of each group, as an engine's parameter groups have them after the step."""
        initial = [hyperparameters(spec) for spec in specs(self.scenario.optimizer)]
        groups = [each | scaled(each, factors) for each, factors in zip(initial, self.factors, strict=True)]
        return scheduled_values(self.scenario, groups)

    def counters(self, when: str = "") -> State:
        """The counters by name, as :meth:`zerobench.subject.Subject.counters` names them."""
        steps, scenario = self.steps, self.scenario
        found = {
            "global_steps": steps,
            "skipped_steps": self.skipped,
            "micro_steps": self.micro_steps,
            "global_samples": steps * scenario.leaves * scenario.micro_batch,
        }
        return {f"{name}{when}": torch.tensor(count) for name, count in found.items()}
