"""A meter that cannot see a number gives none."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from zerobench.meters import crossing
from zerobench.ranks import Pool


def _elsewhere(group: dist.ProcessGroup, alike: bool) -> int | None:
    """The bytes that a rank counts if the ranks' devices are taken for one, or for several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zerobench.meters.wire._device", lambda: "one" if alike else f"of rank {dist.get_rank(group)}")
        with crossing(group) as crossed:
            dist.barrier(group)
    return crossed.bytes


def test_ranks_that_share_no_loopback(pool: Pool) -> None:
    """The count of one device is not that of the bytes between ranks that have several."""
    if None in (counted := pool.run(_elsewhere, True, world=2)):
        pytest.skip("the kernel does not say how many bytes crossed the loopback device")
    assert all(counted)
    assert pool.run(_elsewhere, False, world=2) == [None, None]
