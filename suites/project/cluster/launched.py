"""Ranks that a launcher has started, and what rank 0 asks of them."""

from __future__ import annotations

import os
import sys
import time

import torch.distributed as dist

from zerobench.errors import RankFailure, UsageError
from zerobench.machine.launch import Launch
from zerobench.ranks import Pool, follow, open_pool


def refuses(ranks: Pool) -> None:
    """The input is wrong, as only rank 0 sees."""
    raise UsageError("the folder is not there")


def works(ranks: Pool) -> None:
    """One task after another, with less time between them than it takes to look whether rank 0 is still there."""
    assert [ranks.run(_add, number) for number in range(100)] == [[number, number + 1] for number in range(100)]


def hangs(ranks: Pool) -> None:
    """Rank 1 does not finish."""
    ranks.run(_sleep, timeout=5.0)


def aborts(ranks: Pool) -> None:
    """Native code ends rank 1."""
    ranks.run(_abort)


def _add(group: dist.ProcessGroup, number: int) -> int:
    return number + dist.get_rank(group)


def _sleep(group: dist.ProcessGroup) -> None:
    if dist.get_rank(group) == 1:
        print("the loader waits")
        time.sleep(600)


def _abort(group: dist.ProcessGroup) -> None:
    if dist.get_rank(group) == 1:
        os.write(2, b"an illegal memory access\n")
        os.abort()


def main(what: str) -> int:
    """Do it on rank 0, follow on the others; the exit code."""
    launch = Launch.seen()
    assert launch is not None
    if launch.rank:
        return follow(launch, "cpu", 1)
    try:
        with open_pool(launch.world, "cpu", 1, launch) as ranks:
            {"refuses": refuses, "works": works, "hangs": hangs, "aborts": aborts}[what](ranks)
    except (RankFailure, UsageError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
