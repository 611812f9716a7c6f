"""A fault on one rank ends all ranks, with every rank's traceback and no process left, and the next Scenario runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import psutil
import pytest

from zerobench.errors import RankFailure
from zerobench.ranks import Pool
from zerobench.scenario import Scenario
from zerobench.suites.support.trials import TIME_LIMIT, train


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """A pool of its own: these tests break it."""
    with Pool(3) as pool:
        yield pool


def _train(pool: Pool, subject: str, scenario: Scenario, timeout: float = TIME_LIMIT) -> None:
    pool.run(train, subject, scenario, frozenset(), world=scenario.world, timeout=timeout)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(
    ("fault", "cause", "timeout"),
    [
        ("Killed", "rank 1 was killed by SIGKILL", TIME_LIMIT),
        ("Raises", "rank 1 raised ValueError: the data loader lost its place", TIME_LIMIT),
        ("Hangs", "rank 1 did not finish within 5", 5.0),
    ],
)
def test_fault_in_a_step(ranks: Pool, fault: str, cause: str, timeout: float, stage: int) -> None:
    """A rank that is killed, raises or hangs mid-step: the error names it, and every rank's place is told."""
    scenario = Scenario(world=3, stage=stage)
    _train(ranks, "reference", scenario)
    before = [psutil.Process(worker.process.pid) for worker in ranks._workers if worker.process]
    assert len(before) == 3
    with pytest.raises(RankFailure) as failure:
        _train(ranks, f"zerobench.suites.faults.faulty:{fault}", scenario, timeout)
    message = str(failure.value)
    assert cause in message.splitlines()[0], message
    for rank in range(3):
        assert re.search(rf"^ranks? [\d, ]*\b{rank}\b", message, re.MULTILINE), f"rank {rank} is missing in: {message}"
    if fault == "Hangs":
        assert "in fail" in message, "the stack of the rank that hangs is missing"
    _, alive = psutil.wait_procs(before, timeout=TIME_LIMIT)
    assert not alive, f"processes stayed behind: {alive}"
    _train(ranks, "reference", scenario)


@pytest.mark.parametrize(("fault", "what"), [("OtherConfig", "config"), ("OtherModel", "model")])
def test_ranks_that_do_not_match(ranks: Pool, fault: str, what: str) -> None:
    """Ranks given different configurations or models end at once, and the error says which rank and where."""
    started = time.monotonic()
    with pytest.raises(RankFailure, match=f"rank 1 was given another {what} than rank 0"):
        _train(ranks, f"zerobench.suites.faults.faulty:{fault}", Scenario(world=3, stage=2))
    assert time.monotonic() - started < TIME_LIMIT / 2
    _train(ranks, "reference", Scenario(world=3))
