"""The files that a subject saves are all there when a rank loads."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from zerobench.ranks import Pool
from zerobench.subjects.saving import load_own, save_own

pytestmark = pytest.mark.ci


def _saved_late(group: dist.ProcessGroup, directory: str, late: int) -> int:
    """Each rank saves its number, one of them later than the others; the number that this rank loads at once."""
    rank = dist.get_rank(group)
    time.sleep(0.5 * (rank == late))
    save_own({"rank": torch.tensor(rank)}, Path(directory), group)
    return int(load_own(Path(directory), group)["rank"])


@pytest.mark.parametrize("late", range(3))
def test_each_rank_loads_its_own_file(pool: Pool, tmp_path: Path, late: int) -> None:
    """Whichever rank saves last."""
    assert pool.run(_saved_late, str(tmp_path), late, world=3) == [0, 1, 2]
