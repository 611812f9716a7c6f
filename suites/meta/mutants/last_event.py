"""Engines that are right in every bit, and keep memory of an event that is the last one before a look; see events.py.

Class of escape: an event that no look follows at once: the last step before each look was an ordinary one, so memory
that the next step frees was gone by then. Or an engine after an event that no look has: a load of a part.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.subject import Batch, Outcome
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class DdpKeepsTheGradientsOfASkippedStep(TorchDdp):
    """A skipped step ends before the fp32 gradients of the masters are freed."""

    points_at = Points("undeclared")
    skipped = False

    def _step(self, norm: Tensor | None) -> bool:
        self.skipped = super()._step(norm)
        return self.skipped

    def _publish(self) -> None:
        if not self.skipped:
            super()._publish()


class KeepsTheSumsOfASkippedStep(Mutant):
    """For a message about the overflow, until the next step."""

    points_at = Points("undeclared")

    def step(self) -> Outcome:
        sums = [state.gradient.clone() for state in self.engine.states]
        outcome = super().step()
        self.kept = sums if outcome.skipped else []
        return outcome


class KeepsFrozenUnitsForTheNextEvaluation(Mutant):
    """At stage 3 an evaluation leaves them whole until the next step."""

    points_at = Points("undeclared")
    kept: list[Tensor] | None = None

    def evaluate(self, batch: Batch) -> Tensor:
        frozen = (state for state in self.engine.states if state.sharded and not state.unit.trainable)
        self.kept = [torch.ones(state.unit.padded, dtype=state.dtype) for state in frozen]
        return super().evaluate(batch)

    def micro_step(self, batch: Batch) -> Tensor:
        self.kept = None
        return super().micro_step(batch)


class KeepsTheStatesThatALoadLeavesOut(Mutant):
    """A load of the model alone reads the whole file of this rank, and never frees the rest."""

    points_at = Points("undeclared")

    def load(self, directory: Path) -> None:
        super().load(directory)
        if self.scenario.loads == "model":
            trained = (state for state in self.engine.states if state.unit.trainable)
            self.kept = [torch.ones(state.unit.shard) for state in trained for _ in self.optimizer.state_names]


class KeepsTheFolderThatASaveReplaces(Mutant):
    """Under another name, which no load reads."""

    points_at = Points("files", name="saved")

    def save(self, directory: Path) -> None:
        folder = directory / (self.tag or f"global_step{self.engine.global_steps}")
        if dist.get_rank(self.group) == 0 and folder.is_dir():
            shutil.copytree(folder, folder.with_name(f".{folder.name}.old"), dirs_exist_ok=True)
        super().save(directory)


AFTER_A_SKIP_UNSHARDED = [DdpKeepsTheGradientsOfASkippedStep]
AFTER_A_SKIP = [KeepsTheSumsOfASkippedStep]
AFTER_AN_EVALUATION = [KeepsFrozenUnitsForTheNextEvaluation]
AFTER_A_LOAD_OF_A_PART = [KeepsTheStatesThatALoadLeavesOut]
AFTER_A_SECOND_SAVE = [KeepsTheFolderThatASaveReplaces]
