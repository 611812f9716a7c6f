"""Engines that are right in every bit, and hold or send more where no meter looked; see plain.py and events.py.

Class of escape: a rank that no meter looks at, memory that neither torch nor malloc gives, an event after which nobody
counts, bytes that no call of the network or of a file carries.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

import numpy as np
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

    def mapped(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size)

    def sabotage(self) -> None:
        size = _size(self)
        self.map = self.mapped(size)
        self.map.write(bytes([1]) * size)

    def close(self) -> None:
        self.map.close()
        super().close()


class KeepsACopyInAPrivateMap(KeepsACopyInAMap):
    """The copy's memory is the process's alone."""

    def mapped(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class KeepsACopyInAMappedFile(KeepsACopyInAMap):
    """The copy lies in a file without a name, which the process has mapped."""

    def mapped(self, size: int) -> mmap.mmap:
        with TemporaryFile() as file:
            os.ftruncate(file.fileno(), size)
            return mmap.mmap(file.fileno(), size)


class KeepsArraysBesideItsBuffers(Mutant):
    """If its states are in files, whose buffers are maps, it keeps them in arrays, too."""

    points_at = Points("process")

    def sabotage(self) -> None:
        shards = [state.unit.shard for state in self.engine.states] if self.scenario.optimizer_at == "nvme" else []
        self.arrays = [np.ones(3 * shard, dtype=np.float32) for shard in shards]


class SendsThroughSharedMemory(Mutant):
    """In each step the gradients go through files that the ranks map together, and that are empty between steps."""

    points_at = Points("wire")

    def sabotage(self) -> None:
        names: list[Any] = [None] * self.group.size()
        self.file = NamedTemporaryFile()  # noqa: SIM115 - it is closed with the engine
        dist.all_gather_object(names, self.file.name, group=self.group)
        self.other = Path(names[dist.get_rank(self.group) - 1])

    def step(self) -> Outcome:
        size = _size(self)
        os.ftruncate(self.file.fileno(), size)
        with mmap.mmap(self.file.fileno(), size) as sent:
            sent.write(bytes([1]) * size)
            dist.barrier(self.group)
            with _map_of(self.other, size) as received:
                received.read()
                dist.barrier(self.group)
        os.ftruncate(self.file.fileno(), 0)
        return super().step()

    def close(self) -> None:
        self.file.close()
        super().close()


@contextmanager
def _map_of(path: Path, size: int) -> Iterator[mmap.mmap]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as found:
        yield found


def _size(mutant: Mutant) -> int:
    """The bytes of the whole model in fp32."""
    return 4 * sum(state.unit.padded for state in mutant.engine.states)


class ReadsAllFilesInALoad(Mutant):
    """Each rank reads the files of all ranks in a load."""

    points_at = Points("read")

    def load(self, directory: Path) -> None:
        super().load(directory)
        for path in (each for each in directory.rglob("*") if each.is_file()):
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass


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
IN_MAPS = [KeepsACopyInAMap, KeepsACopyInAPrivateMap, KeepsACopyInAMappedFile]
BESIDE_MAPS = [KeepsArraysBesideItsBuffers]
THROUGH_MAPS = [SendsThroughSharedMemory]
READ_IN_LOADS = [ReadsAllFilesInALoad]
IN_FAILED_LOADS = [LeavesADescriptorOfAFailedLoad]
OF_SCHEDULERS = [GrowsWithItsScheduler, SendsARateThatItsSchedulerChanged]
