"""Runs: points of the grid measured on ranks, each once; the outcome, as results."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch

from zerobench.bench.case_json import cases_json
from zerobench.bench.document import make_document
from zerobench.bench.oracle_runs import OracleRuns
from zerobench.bench.rounds import Bench
from zerobench.errors import RankFailure, UsageError
from zerobench.machine.environment import describe_environment, rank_environment
from zerobench.machine.launch import Launch, threads_each
from zerobench.ranks import Pool, open_pool
from zerobench.results import Json
from zerobench.results.identity import Case
from zerobench.suites.bench import capacity
from zerobench.suites.bench.collectives import time_collectives
from zerobench.suites.bench.grid import Point, Search
from zerobench.suites.bench.kernels import turns
from zerobench.suites.bench.kernels.workloads import WORKLOADS

#: Seconds for a step, or for building a subject; a quick one takes less than one.
TIME_LIMIT = 300.0
#: Each round times every collective once.
ROUNDS = 15


def world_size(device: str) -> int:
    """The number of ranks: those that were launched, else two on a CPU, one for each GPU on CUDA."""
    launch = Launch.seen()
    if launch:
        return launch.world
    return max(1, torch.cuda.device_count()) if device == "cuda" else 2


def world_sizes(device: str) -> list[int]:
    """The world sizes to scale over; a launch has only its own."""
    if Launch.seen():
        return [world_size(device)]
    most = world_size(device) if device == "cuda" else 4
    return [world for world in (1, 2, 4, 8) if world <= most]


def threads(device: str) -> int:
    """One rank's threads: those that it has if the largest world shares the cores, so that scaling is fair."""
    return threads_each(max(world_sizes(device)), Launch.seen())


class Runs:
    """Measures points on request, and keeps their cases; one pool of ranks is open at a time.

    Unless it ``judges``, there are no verdicts: the oracles of a model of a billion parameters take minutes.
    """

    def __init__(self, device: str, progress: Callable[[str], None], judges: bool = True) -> None:
        self.device, self.progress, self.judges = device, progress, judges
        #: Called as soon as :meth:`document` has something new.
        self.saves: Callable[[], None] = lambda: None
        self.environment: Json | None = None
        self.collectives: list[Json] = []
        self.kernels: list[Json] = []
        self.fits: list[Json] = []
        self.peaks: dict[str, Json | None] = {}
        self._collectives: dict[tuple[int, int], dict[str, list[float]]] = {}
        self._kernels: dict[tuple[str, int], tuple[int, dict[str, list[float]]]] = {}
        self._unfit: dict[tuple[str, int], str] = {}
        self._cases: dict[str, list[Json]] = {}
        self._ended: dict[str, Exception] = {}
        self._pool: Pool | None = None

    def pool(self, world: int) -> Pool:
        """Ranks of a world; the ranks of another world end."""
        if self._pool is None or self._pool.world != world:
            self.close()
            self._pool = open_pool(world, self.device, threads(self.device), Launch.seen())
            self.environment = self._pool.run(rank_environment, world=1)[0]
        return self._pool

    def case(self, point: Point, case: Case) -> Json:
        """One case of a point; if measuring a point fails, all its cases raise that failure."""
        if point.name in self._ended:
            raise self._ended[point.name]
        if point.name not in self._cases:
            try:
                self._cases[point.name] = self._measure(point)
            except (RankFailure, UsageError) as error:
                self._ended[point.name] = error
                raise
        return next(found for found in self._cases[point.name] if found["id"] == case.id)

    def peak(self, point: Point) -> Json | None:
        """The rate of a matrix multiplication in the point's dtype, on as many ranks; None if it failed."""
        return self.peaks[point.name]

    def _measure(self, point: Point) -> list[Json]:
        bench = Bench(
            self.pool(point.base.world),
            point.cases,
            TIME_LIMIT,
            lambda what: self.progress(f"{point.name}: {what}"),
            judged=self.judges,
        )
        bench.train(point.base.steps)
        peak = self.peaks[point.name] = bench.peak(point.base.dtype)

        def save(oracle_runs: OracleRuns | None = None) -> None:
            self._cases[point.name] = cases_json(bench.results, oracle_runs, point.warmup, peak)
            self.saves()

        save()
        bench.meter(save)
        save(OracleRuns.of(bench) if self.judges else None)  # last, because they take most memory
        return self._cases[point.name]

    def document(self, command: str) -> Json | None:
        """All measurements so far; None if there are none."""
        if self.environment is None:
            return None
        measured: dict[str, Json] = {}  # if several points share a case, the first one's counts
        for case in chain.from_iterable(self._cases.values()):
            measured.setdefault(case["id"], case)
        return make_document(
            list(measured.values()),
            command,
            self.environment,
            peaks=list(self.peaks.values()),
            collectives=self.collectives or None,
            kernels=self.kernels or None,
            fits=self.fits or None,
        )

    def collective_rounds(self, world: int, size: int) -> dict[str, list[float]]:
        """Seconds of each round of each collective on so many bytes: the slowest rank's."""
        key = world, size
        if key not in self._collectives:
            self.progress(f"collectives of {size} bytes on {world} ranks")
            ranks = self.pool(world).run(time_collectives, size, self.device, ROUNDS, timeout=TIME_LIMIT)
            self._collectives[key] = {
                name: [max(r) for r in zip(*(each[name] for each in ranks), strict=True)] for name in ranks[0]
            }
        return self._collectives[key]

    def here(self) -> None:
        """Make this process, on all cores, the one that measures."""
        torch.set_num_threads(threads_each(1, Launch.seen()))
        self.environment = self.environment or describe_environment()

    def kernel(self, name: str, n: int, against: str) -> tuple[Json, list[float]]:
        """A kernel on n elements beside a rival, and its seconds in each round; in this process, on all cores."""
        key = name, n
        if key in self._unfit:
            raise torch.OutOfMemoryError(self._unfit[key])
        if key not in self._kernels:
            self.progress(f"{name} on {n} elements")
            self.here()
            try:
                workload = WORKLOADS[name](n, self.device)
                self._kernels[key] = workload.moved, turns.by_turns(workload, self.device)
            except torch.OutOfMemoryError as error:
                self._unfit[key] = str(error)
                raise
        moved, seconds = self._kernels[key]
        return turns.result(name, n, moved, self.device, seconds, against), seconds[turns.KERNEL]

    def fit(self, search: Search) -> Json:
        """The largest model of a search, in ranks that are started for each attempt."""
        world = search.case.scenario.world
        if self.environment is None:
            self.pool(world)  # which asks its ranks
        self.close()
        return capacity.measure(search, threads(self.device), self.progress)

    @property
    def backend(self) -> str:
        """The backend for the device's tensors."""
        assert self.environment is not None
        backends = dict(each.split(":") for each in self.environment["backend"].split(","))
        return str(backends[self.device])

    def close(self) -> None:
        """End the ranks."""
        if self._pool:
            self._pool.close()
            self._pool = None
