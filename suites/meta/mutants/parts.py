"""Engines that lose a state when they load a part of a saved one after they have trained.

Class of escape: a load that no property makes. Each is right if the engine that loads a part has just been built.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class _LosesWhatIsNotLoaded(Mutant):
    points_at: ClassVar[Points] = Points("parameters", "model_parameters", "optimizer_state", "loss_scale", "skipped")

    def load(self, directory: Path) -> None:
        super().load(directory)
        if self.scenario.loads != "all":
            self.lose()

    def lose(self) -> None:
        """Set a state that the load leaves out to that of a new engine."""
        raise NotImplementedError


class RestartsStepCountsWhenItLoadsAPart(_LosesWhatIsNotLoaded):
    def lose(self) -> None:
        self.engine.stepper.steps = [0] * len(self.engine.stepper.steps)


class ClearsStatesWhenItLoadsAPart(_LosesWhatIsNotLoaded):
    """Momentum and moments begin anew, as they do in an engine that a client builds for the loaded weights."""

    def lose(self) -> None:
        for state in self.engine.stepper.states:
            for window in state.optimizer_store.update_slices(state.portion):
                for each in window.optimizer:
                    each.zero_()
                window.follow(window.start, window.stop)


PARTS: list[type[_LosesWhatIsNotLoaded]] = [RestartsStepCountsWhenItLoadsAPart, ClearsStatesWhenItLoadsAPart]
