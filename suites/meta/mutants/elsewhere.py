"""Engines that load wrongly what another number of ranks has saved."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from zerobench.engine.checkpoint.record import read
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import VALUES, Points


class _Elsewhere(Mutant):
    """Changes the loaded state if another number of ranks has saved it."""

    points_at: ClassVar[Points] = VALUES

    def load(self, directory: Path) -> None:
        steps = list(self.engine.stepper.steps)
        super().load(directory)
        tag = (directory / "latest").read_text().strip()
        if read(directory / tag).contents.world != self.group.size():
            self.spoil(steps)

    def spoil(self, steps: list[int]) -> None:
        """Change the state; ``steps`` are the step counts from before the load."""
        raise NotImplementedError


class RoundsAPartElsewhere(_Elsewhere):
    """After a load of a part the masters are in 16 bits."""

    def spoil(self, steps: list[int]) -> None:
        if self.scenario.loads_part:
            self.edit_masters(lambda master: master.copy_(master.bfloat16()))


class KeepsStepCountsElsewhere(_Elsewhere):
    """An engine that has trained keeps its own step counts."""

    def spoil(self, steps: list[int]) -> None:
        if any(steps):
            self.engine.stepper.steps = steps


class TakesBuffersOfTheFirstElsewhere(_Elsewhere):
    """Each rank takes the buffers of rank 0."""

    points_at = Points("client")

    def spoil(self, steps: list[int]) -> None:
        for buffer in self.model.buffers():
            self.engine.ranks.broadcast(buffer.data)
