"""Engines that are right in every bit, and hold or send more where no meter looked; see plain.py and events.py.

Class of escape: a rank that no meter looks at, memory that neither torch nor malloc gives, an event after which nobody
counts.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.subject import Outcome
from zerobench.suites.meta.mutants.plain import Mutant
from zerobench.suites.meta.points import Points


class OtherRanksKeepGradientsDuringBackward(Mutant):
    """All ranks but the first keep the gradients of a backward until the update."""

    points_at = Points("unreduced", name="gradients")

    def sabotage(self) -> None:
        self.private: list[Tensor] = []
        for p in self.trained.values() if dist.get_rank(self.group) else ():
            p.register_hook(lambda gradient: self.private.append(gradient.clone()))  # type: ignore[no-untyped-call]

    def step(self) -> Outcome:
        self.private.clear()
        return super().step()


class TheThirdRankKeepsACopy(Mutant):
    """Ranks from the third on keep a copy of the model."""

    points_at = Points("undeclared")

    def sabotage(self) -> None:
        self.kept = [torch.ones(p.numel()) for p in self.trained.values() if dist.get_rank(self.group) > 1]


class KeepsACopyInAMap(Mutant):
    """A copy of the model lies in memory that the process has mapped by itself."""

    points_at = Points("process")

    def sabotage(self) -> None:
        size = 4 * sum(state.unit.padded for state in self.engine.states)
        self.map = mmap.mmap(-1, size)
        self.map.write(bytes([1]) * size)

    def close(self) -> None:
        self.map.close()
        super().close()


class LeavesADescriptorOfAFailedLoad(Mutant):
    points_at = Points("client")
    file: int | None = None

    def load(self, directory: Path) -> None:
        try:
            super().load(directory)
        except BaseException:
            self.file = os.open(os.devnull, os.O_RDONLY)
            raise

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
        super().close()


class GrowsWithItsScheduler(Mutant):
    """Each step of the engine's scheduler leaves a number."""

    points_at = Points("growth", name="tensors")

    def step(self) -> Outcome:
        outcome = super().step()
        if self.engine.lr_scheduler is not None:
            self.rates_of_steps = [*getattr(self, "rates_of_steps", []), torch.ones(1)]
        return outcome


class SendsARateThatItsSchedulerChanged(Mutant):
    """In the step after it."""

    points_at = Points("traffic", name="broadcast")

    def sabotage(self) -> None:
        self.last = self.rates()

    def step(self) -> Outcome:
        if self.engine.lr_scheduler is not None and self.rates() != self.last:
            dist.broadcast(torch.zeros(1), dist.get_global_rank(self.group, 0), group=self.group)
        self.last = self.rates()
        return super().step()


ON_OTHER_RANKS_IN_BACKWARD = [OtherRanksKeepGradientsDuringBackward]
ON_THE_THIRD_RANK = [TheThirdRankKeepsACopy]
IN_MAPS = [KeepsACopyInAMap]
IN_FAILED_LOADS = [LeavesADescriptorOfAFailedLoad]
OF_SCHEDULERS = [GrowsWithItsScheduler, SendsARateThatItsSchedulerChanged]
