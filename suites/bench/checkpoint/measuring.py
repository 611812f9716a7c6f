"""Measuring: one rank's part of the rounds, each of which has every kind of file operation once."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.driver import run_step, start
from zerobench.engine.checkpoint import shard_file
from zerobench.meters.memory import PeakMeter
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.bench.checkpoint import plain

#: The operations of a round, in order; every other round runs them in the reverse order.
OPERATIONS = ("plain write", "save", "copy", "asynchronous save: stall", "plain read", "load")
_TAG = "measured"


@dataclass(frozen=True)
class Measured:
    """One rank's measurement: bytes of its shard file, seconds by operation and round, and bytes of host memory that a
    save and a load allocate at their peak."""

    bytes: int
    seconds: dict[str, list[float]]
    peaks: dict[str, int]


def measure(group: dist.ProcessGroup, scenario: Scenario, directory: Path, rounds: int) -> Measured:
    """Train one step, then measure; all ranks' seconds are those of the slowest rank. A collective."""
    with closing(start(Reference, scenario, group)) as subject:
        run_step(subject, scenario, 0, dist.get_rank(group))
        assert isinstance(subject, Reference)
        return _Measuring(subject, group, directory).run(rounds)


class _Measuring:
    """The operations of one rank on one engine."""

    def __init__(self, subject: Reference, group: dist.ProcessGroup, directory: Path) -> None:
        self.engine, self.group, self.directory = subject.engine, group, directory
        self.rank = dist.get_rank(group)
        self.own = directory / f"plain-{self.rank}"
        self.engine.save_checkpoint(directory, _TAG)
        self.shard = directory / _TAG / shard_file.name_of(self.rank)
        self.values = torch.frombuffer(bytearray(os.urandom(self.shard.stat().st_size)), dtype=torch.uint8)

    def run(self, rounds: int) -> Measured:
        """Measure every operation in each round, after one round that does not count."""
        seconds: dict[str, list[float]] = {name: [] for name in OPERATIONS}
        for index in range(-1, rounds):
            for name in OPERATIONS if index % 2 else reversed(OPERATIONS):
                taken = self._timed(name)
                if index >= 0:
                    seconds[name].append(taken)
        return Measured(len(self.values), seconds, {"save": self._peak(self._save), "load": self._peak(self._load)})

    def _timed(self, name: str) -> float:
        """Seconds of one operation, on the slowest rank."""
        with self._prepared(name) as operation:
            dist.barrier(group=self.group)
            begun = time.perf_counter()
            operation()
            taken = torch.tensor(time.perf_counter() - begun, dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX, group=self.group)
        return taken.item()

    @contextmanager
    def _prepared(self, name: str) -> Iterator[Callable[[], object]]:
        """An operation that is ready to start; the untimed rest of it follows."""
        if name == "plain write":
            self.own.unlink(missing_ok=True)
            yield lambda: plain.write(self.own, _memory(self.values))
        elif name == "plain read":
            if not self.own.exists():
                plain.write(self.own, _memory(self.values))
            plain.forget([self.own])
            yield lambda: plain.read(self.own, _memory(self.values))
        elif name == "copy":
            yield self.values.clone
        elif name == "save":
            self._clear()
            yield self._save
        elif name == "load":
            plain.forget([self.shard])
            yield self._load
        else:
            self._clear()
            yield lambda: self.engine.async_save_checkpoint(self.directory, _TAG)
            self.engine._end_save()

    def _clear(self) -> None:
        """Delete the last checkpoint, as a plain write deletes its file, so that a save replaces none."""
        dist.barrier(group=self.group)
        if self.rank == 0:
            shutil.rmtree(self.directory / _TAG)
        dist.barrier(group=self.group)

    def _save(self) -> None:
        self.engine.save_checkpoint(self.directory, _TAG)

    def _load(self) -> None:
        self.engine.load_checkpoint(self.directory, _TAG)

    def _peak(self, operation: Callable[[], None]) -> int:
        """The peak of the host memory that torch allocates in an operation, in bytes above what training holds."""
        with PeakMeter() as meter:
            operation()
        return meter.bytes


def _memory(values: Tensor) -> memoryview:
    return memoryview(values.numpy())  # type: ignore[arg-type]  # numpy's stubs
