"""Engines that are wrong if a client goes back to an older state than the last one that it has saved, or within a step.

Class of escape: a load that no property makes. Every draw loads the state that was saved last, between two steps.
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from zerobench.engine.optim.check import GradientCheck
from zerobench.subject import Outcome, State
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import VALUES, Points


class LoadsWhatItSavedLast(Mutant):
    """An engine that has saved loads its last state, wherever the client sends it, as one that keeps it in memory."""

    points_at = VALUES
    saved: Path | None = None

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.saved = directory

    def load(self, directory: Path) -> None:
        kept = self.saved is not None and self.saved.exists()  # the client may have moved it
        super().load(self.saved if kept and self.saved is not None else directory)


class LoadsTheNewestOfADirectory(Mutant):
    """A load takes the newest state of the directory, whatever its name, as an engine that goes by ``latest`` alone."""

    points_at = VALUES

    def load(self, directory: Path) -> None:
        self.tag = ""
        super().load(directory)


class TrainsInTheFilesThatItHasLoaded(Mutant):
    """The first step after a load changes the saved state as well, as in an engine that maps its files to write."""

    points_at = VALUES
    loaded: tuple[Path, str] | None = None

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.loaded = (directory, self.tag) if self.tag else None

    def step(self) -> Outcome:
        outcome = super().step()
        loaded, self.loaded = self.loaded, None
        if loaded is not None:
            self.engine.save_checkpoint(*loaded, save_latest=False)
        return outcome


class KeepsTwoStates(Mutant):
    """Has the last two states that it has saved; in place of an older one it loads the older of these."""

    points_at = VALUES

    def sabotage(self) -> None:
        self.tags: list[str] = []

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.tags = [*self.tags, self.tag][-2:]

    def load(self, directory: Path) -> None:
        if self.tags and self.tag not in self.tags:
            self.tag = self.tags[0]
        super().load(directory)


class SavesWithTheNextEdit(Mutant):
    """Writes what it saves a little later, with the values that the client has set meanwhile."""

    points_at = VALUES
    rare = "changes of a client on three ranks"
    saved: Path | None = None

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.saved = directory

    def set_parameters(self, values: State) -> None:
        super().set_parameters(values)
        saved, self.saved = self.saved, None
        if saved is not None and saved.exists():  # the client may have moved it
            super().save(saved)


class AddsToABegunStep(Mutant):
    """A load leaves the gradients of the step that has begun, and the next one adds to them."""

    points_at = VALUES
    begun = False

    def sabotage(self) -> None:
        begin = self.engine.reducer.begin

        def adding(first: bool, last: bool, loss: Tensor | None) -> None:
            begun, self.begun = self.begun, False
            begin(first and not begun, last, loss)

        self.engine.reducer.begin = adding  # type: ignore[method-assign]

    def load(self, directory: Path) -> None:
        self.begun = self.engine.accumulation.begun
        super().load(directory)


class DividesByABegunStep(Mutant):
    """After a load within a step the next one has other rates, as if the micro-steps before it counted, too."""

    points_at = VALUES
    factor = 1.0

    def load(self, directory: Path) -> None:
        begun = self.engine.accumulation.begun
        super().load(directory)
        self.factor = 0.5 if begun else 1.0

    def step(self) -> Outcome:
        factor, self.factor = self.factor, 1.0
        self.scale_rates(factor)
        outcome = super().step()
        self.scale_rates(1 / factor)
        return outcome


class KeepsTheGradientsOfABegunStepInMind(Mutant):
    """A block that the step before a load has used counts as used in the step after it, and gets a gradient of zero."""

    points_at = VALUES
    begun: list[bool] | None = None

    def sabotage(self) -> None:
        check = self.engine.stepper.check_gradients

        def checked(active: list[bool], divisor: float) -> GradientCheck:
            begun, self.begun = self.begun or active, None
            return check([now or before for now, before in zip(active, begun, strict=True)], divisor)

        self.engine.stepper.check_gradients = checked  # type: ignore[method-assign]

    def load(self, directory: Path) -> None:
        begun = list(self.engine.reducer.active) if self.engine.accumulation.begun else None
        super().load(directory)
        self.begun = begun


class EmptiesTheDirectory(TorchDdp):
    """Removes all files of a directory before it saves, as those of an earlier state."""

    points_at = Points("client", name="a file of the client in the directory, by save")

    def save(self, directory: Path) -> None:
        dist.barrier(self.group)
        if dist.get_rank(self.group) == 0:
            for each in directory.iterdir():
                each.unlink()
        dist.barrier(self.group)
        super().save(directory)


class NotesItsLoads(TorchDdp):
    """In the directory, which may be one that it cannot write to."""

    points_at = Points("client", name="the files of the saved state, by load")

    def load(self, directory: Path) -> None:
        super().load(directory)
        (directory / f"loaded-{dist.get_rank(self.group)}").write_text("loaded", encoding="utf-8")


GOES_BACK: list[type[Mutant] | type[TorchDdp]] = [
    LoadsWhatItSavedLast,
    LoadsTheNewestOfADirectory,
    TrainsInTheFilesThatItHasLoaded,
    KeepsTwoStates,
    AddsToABegunStep,
    DividesByABegunStep,
    KeepsTheGradientsOfABegunStepInMind,
    EmptiesTheDirectory,
    NotesItsLoads,
]
#: Caught by the Scenario that it names in ``rare``.
OVER_AN_EDIT: list[type[SavesWithTheNextEdit]] = [SavesWithTheNextEdit]
