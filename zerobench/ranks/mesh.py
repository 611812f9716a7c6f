"""Process groups of a mesh: groups of neighbouring ranks, and across them the ranks of equal number."""

from __future__ import annotations

from functools import cache

import torch.distributed as dist

from zerobench.errors import UsageError


def groups(group: dist.ProcessGroup, size: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's group of ``size`` neighbours, and its group of the ranks of the same number in all such groups.

    Every rank of ``group`` calls it. The groups are made once in a process, as each costs a rendezvous of all ranks.

    Raises:
        UsageError: ``group`` is a part of the ranks only (torch makes a group with all of them), or ``size`` does not
            divide it.
    """
    world, every = dist.get_world_size(group), dist.get_world_size()
    if world != every or world % size:
        raise UsageError(f"groups of {size} ranks were asked for among {world}; give all {every} ranks, and a divisor")
    return _made(size)


@cache
def _made(size: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    neighbours = [dist.new_group(ranks[start : start + size]) for start in ranks[::size]]
    across = [dist.new_group(ranks[number::size]) for number in range(size)]
    return neighbours[rank // size], across[rank % size]
