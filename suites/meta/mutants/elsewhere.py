"""Engines that load wrongly what another number of ranks has saved."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

from zerobench.engine.checkpoint.record import read
from zerobench.subjects.torch_ddp import TorchDdp
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


class RoundsItsSavesElsewhere(_Elsewhere):
    """From then on each save rounds the masters to 16 bits."""

    loaded_others = False

    def spoil(self, steps: list[int]) -> None:
        self.loaded_others = True

    def save(self, directory: Path) -> None:
        if self.loaded_others:
            self.edit_masters(lambda master: master.copy_(master.bfloat16()))
        super().save(directory)


class KeepsTheSavedScale(TorchDdp):
    """A static loss scale is that of the engine that has saved. It promises no bits."""

    points_at = Points("loss_scale")
    saved_scale = 0.0

    def save(self, directory: Path) -> None:
        super().save(directory)
        if self.group.rank() == 0:
            torch.save(self.scenario.loss_scale.static, directory / "scale.pt")
        dist.barrier(self.group)

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.saved_scale = torch.load(directory / "scale.pt", weights_only=True)

    def _next_scale(self) -> float:
        static = self.scenario.dtype == "fp16" and self.scenario.loss_scale.static
        return self.saved_scale if static and self.saved_scale else super()._next_scale()
