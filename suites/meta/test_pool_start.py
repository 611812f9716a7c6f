"""The start of a pool's ranks may take too long."""

from __future__ import annotations

import pytest

from zerobench.ranks import Pool, RankFault, pool
from zerobench.suites.faults import faulty


def test_ranks_that_do_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the time to start the ranks is over before any has begun, the error is that of a time limit."""
    monkeypatch.setattr(pool, "TIME_LIMIT", 0.0)
    monkeypatch.setattr(pool, "_DUMPING", 0.1)
    with Pool(2) as ranks, pytest.raises(RankFault, match=r"^ranks 0, 1 did not finish within 0"):
        ranks.run(faulty.train)
