"""The all-gather of a unit's shards into the whole unit."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.layout import Unit


def gather_shards(unit: Unit, full: Tensor, shard: Tensor, ranks: Ranks, bucket: int) -> list[Any]:
    """Start all-gathering every rank's ``shard`` into ``full``, ``bucket`` elements of the whole at a time.

    Args:
        unit: buckets are cut on its chunk grid.
        full: [unit.padded].
        shard: [unit.shard], this rank's part; it must not change until the gather is over.
        ranks: all ranks that have a shard.
        bucket: the number of elements.

    Returns:
        Handles to wait for.
    """
    cuts = list(unit.buckets(bucket))
    if len(cuts) <= 1 or ranks.world == 1:
        return [ranks.all_gather(full, shard)] if cuts else []
    rows = full.view(ranks.world, -1)
    works = []
    for start, stop in cuts:
        received = torch.empty(ranks.world, stop - start, dtype=full.dtype, device=full.device)
        work = ranks.all_gather(received.view(-1), shard[start:stop])
        works.append(_Scattered(work, received, rows[:, start:stop]))
    return works


class _Scattered:
    """The handle of a gather of a slice of every shard, which arrives in rank order and is then copied into place."""

    def __init__(self, work: Any, received: Tensor, places: Tensor) -> None:
        self._work, self._received, self._places = work, received, places

    def wait(self) -> None:
        """Wait for the bytes and copy them into place."""
        self._work.wait()
        self._places.copy_(self._received)


class InFlight:
    """Gathers of units that run at the same time: of two units at most.

    Each may have the memory of a whole unit, in buckets.
    """

    def __init__(self) -> None:
        self._units: deque[list[Any]] = deque()

    def add(self, works: list[Any]) -> None:
        """Take the handles of one unit's gathers, and wait for those of older units."""
        self._units.append(works)
        self._drain(_IN_FLIGHT)

    def finish(self) -> None:
        """Wait for all."""
        self._drain(0)

    def _drain(self, allowed: int) -> None:
        while len(self._units) > allowed:
            for work in self._units.popleft():
                work.wait()


_IN_FLIGHT = 2
