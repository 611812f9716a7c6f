"""Engines that go wrong if one event follows another with no step between them.

Class of escape: an order of events that no Scenario had.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from zerobench.subject import Batch, State
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import VALUES


class SavesTheMastersOfBeforeAnEdit(Mutant):
    """An edit reaches the masters that a save writes with the next micro-step."""

    points_at = VALUES
    before: State | None = None  # the values that an edit has replaced, until the next micro-step or load

    def set_parameters(self, values: State) -> None:
        every = self.parameters()
        super().set_parameters(values)
        self.before = {name: every[name] for name in values}

    def micro_step(self, batch: Batch) -> Tensor:
        self.before = None
        return super().micro_step(batch)

    def load(self, directory: Path) -> None:
        self.before = None
        super().load(directory)

    def save(self, directory: Path) -> None:
        if self.before is None:
            super().save(directory)
            return
        replaced, every = self.before, self.parameters()
        Mutant.set_parameters(self, replaced)
        super().save(directory)
        Mutant.set_parameters(self, {name: every[name] for name in replaced})


#: Caught by runs that resume.
ADJACENT: list[type[Mutant]] = [SavesTheMastersOfBeforeAnEdit]
