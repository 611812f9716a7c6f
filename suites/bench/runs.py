"""Runs: points of the grid measured on ranks, each once; what came of them, as results."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from suites.bench.grid import Point
from zerobench.bench import Bench, rows
from zerobench.live import surroundings
from zerobench.ranks import Pool
from zerobench.results import Json, document, rows_of
from zerobench.trial import Trial

#: Seconds for a step, or for building a subject; a quick one takes less than one.
TIME_LIMIT = 300.0


def world_size(device: str) -> int:
    """How many ranks to measure on: two on a CPU, one for each GPU on CUDA."""
    return max(1, torch.cuda.device_count()) if device == "cuda" else 2


def world_sizes(device: str) -> list[int]:
    """How many to scale over."""
    most = world_size(device) if device == "cuda" else 4
    return [world for world in (1, 2, 4, 8) if world <= most]


class Runs:
    """Measures points when they are asked for, and keeps their rows; one pool of ranks is open at a time."""

    def __init__(self, device: str, progress: Callable[[str], None]) -> None:
        self.device, self.progress = device, progress
        self.environment: Json | None = None
        self.collectives: list[Json] = []
        self.peaks: dict[str, Json] = {}
        self._rows: dict[str, list[Json]] = {}
        self._pool: Pool | None = None

    def pool(self, world: int) -> Pool:
        """Ranks of a world; those of another one end."""
        if self._pool is None or self._pool.world != world:
            self.close()
            self._pool = Pool(world, self.device, max(1, len(os.sched_getaffinity(0)) // world))
            self.environment = self._pool.run(surroundings, world=1)[0]
        return self._pool

    def row(self, point: Point, subject: str, stage: int | None) -> Json:
        """One row of a point."""
        if point.name not in self._rows:
            self._rows[point.name] = self._measure(point)
        return next(row for row in self._rows[point.name] if (row["subject"], row["stage"]) == (subject, stage))

    def peak(self, point: Point) -> Json:
        """What a matrix multiplication reached in the point's dtype, on as many ranks."""
        return self.peaks[point.name]

    def _measure(self, point: Point) -> list[Json]:
        bench = Bench(
            self.pool(point.base.world),
            rows(point.base, point.subjects, point.stages),
            TIME_LIMIT,
            lambda what: self.progress(f"{point.name}: {what}"),
        )
        bench.train(point.base.steps)
        trial = Trial.of(bench)
        bench.meter()
        peak = self.peaks[point.name] = bench.peak(point.base.dtype)
        return rows_of(bench.rows, trial, point.warmup, peak)

    def document(self, command: str) -> Json | None:
        """All that was measured so far; None where nothing was."""
        if self.environment is None:
            return None
        measured = {row["case"]: row for of_point in self._rows.values() for row in of_point}
        peaks = {(peak["dtype"]): peak for peak in self.peaks.values()}
        return document(
            list(measured.values()),
            command,
            self.environment,
            peaks=list(peaks.values()),
            collectives=self.collectives or None,
        )

    def collective(self, task: Callable[..., list[float]], world: int, *args: Any) -> list[float]:
        """Seconds of each round of a task that times a collective: the slowest rank's."""
        return [max(ranks) for ranks in zip(*self.pool(world).run(task, *args, timeout=TIME_LIMIT), strict=True)]

    def close(self) -> None:
        """End the ranks."""
        if self._pool:
            self._pool.close()
            self._pool = None
