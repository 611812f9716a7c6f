"""The all-gather of a unit's shards into the whole unit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.layout import Unit


def gather_shards(unit: Unit, full: Tensor, shard: Tensor, ranks: Ranks, bucket: int) -> list[Any]:
    """Start all-gathering every rank's ``shard`` into ``full``, ``bucket`` elements of the whole at a time.

    Args:
        unit: its chunk grid says where buckets may be cut.
        full: [unit.padded].
        shard: [unit.shard], this rank's part; it must not change before the gather is over.
        ranks: all that have a shard.
        bucket: elements.

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
    """A gather of a slice of every shard: it arrives in rank order and is then copied to its places."""

    def __init__(self, work: Any, received: Tensor, places: Tensor) -> None:
        self._work, self._received, self._places = work, received, places

    def wait(self) -> None:
        """Wait for the bytes and put them in place."""
        self._work.wait()
        self._places.copy_(self._received)
