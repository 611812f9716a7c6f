"""Engines that are right in every bit, and cost more at a moment, or in a place, that no meter saw; see within.py.

Class of escape: collectives of a thread of the engine's; memory within a forward, the first update or the closing; what
grows and is no tensor; processes and temporary files; what is kept in a pair of settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor

from zerobench.subject import Batch, Outcome
from zerobench.subjects.torch_fsdp2 import TorchFsdp2
from zerobench.suites.meta.mutants.within import _Within
from zerobench.suites.meta.points import Points


class EvaluationSendsOnAThread(_Within):
    points_at = Points("within", name="evaluation")

    def evaluate(self, batch: Batch) -> Tensor:
        thread = Thread(target=self.send)
        thread.start()
        thread.join()
        return super().evaluate(batch)


class HoldsTheModelWithinTheFirstUpdate(_Within):
    points_at = Points("within", name="first update")

    def step(self) -> Outcome:
        copy = None if self.engine.global_steps else self.copy()
        outcome = super().step()
        del copy
        return outcome


class HoldsTheModelWithinItsClosing(_Within):
    points_at = Points("within", name="closing")

    def close(self) -> None:
        copy = self.copy()
        super().close()
        del copy


class HoldsTheModelWithinAForward(_Within):
    points_at = Points("within", name="forward")
    held: Tensor | None = None

    def sabotage(self) -> None:
        self.model.register_forward_hook(self._free, prepend=True)

    def _free(self, *_: object) -> None:
        self.held = None

    def micro_step(self, batch: Batch) -> Tensor:
        self.held = self.copy()
        return super().micro_step(batch)


class GrowsByBytes(_Within):
    """Each step leaves 64 KiB that are no tensor."""

    points_at = Points("growth", name="bytes beside tensors")

    def sabotage(self) -> None:
        self.log: list[bytes] = []

    def step(self) -> Outcome:
        self.log.append(os.urandom(1 << 16))
        return super().step()


class AddsHooksInEachStep(_Within):
    """Hooks of each module, which it never removes."""

    points_at = Points("growth", name="objects beside tensors")

    def step(self) -> Outcome:
        for module in self.model.modules():
            module.register_forward_hook(lambda *_: None)
        return super().step()


class LeavesAProcess(_Within):
    """For half a minute."""

    points_at = Points("left", name="processes")

    def sabotage(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"])


class LeavesATemporaryFile(_Within):
    """Each save leaves one where Python makes temporary files."""

    points_at = Points("left", name="files")

    def save(self, directory: Path) -> None:
        super().save(directory)
        descriptor, _ = tempfile.mkstemp()
        os.close(descriptor)


class KeepsACopyInAPairOfSettings(TorchFsdp2):
    """If it accumulates in bf16."""

    points_at = Points("undeclared")
    kept: Tensor | None = None

    def step(self) -> Outcome:
        if self.scenario.dtype == "bf16" and self.scenario.accumulation > 1 and self.kept is None:
            self.kept = torch.ones(sum(p.numel() for p in self.model.parameters()))
        return super().step()


IN_ANY_CALL = [EvaluationSendsOnAThread, HoldsTheModelWithinTheFirstUpdate, HoldsTheModelWithinItsClosing]
IN_A_FORWARD = [HoldsTheModelWithinAForward]
BESIDE_TENSORS_OF_EACH_STEP = [GrowsByBytes, AddsHooksInEachStep]
OUTSIDE_THE_ENGINE = [LeavesAProcess, LeavesATemporaryFile]
OF_A_PAIR_OF_SETTINGS = [KeepsACopyInAPairOfSettings]
