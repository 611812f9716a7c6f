"""A fault on one rank ends all ranks, with every rank's traceback and no process left, and the next Scenario runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psutil
import pytest

from zerobench.ranks import Pool, RankFault
from zerobench.scenario import Scenario
from zerobench.suites.faults import faulty
from zerobench.suites.support.trials import TIME_LIMIT, Trials


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """A pool of its own: these tests break it."""
    with Pool(3) as pool:
        yield pool


@pytest.mark.parametrize("last", [False, True], ids=["first-stage", "last-stage"])
@pytest.mark.parametrize(
    ("fault", "cause", "timeout"),
    [
        (faulty.killed, "rank 1 was killed by SIGKILL", TIME_LIMIT),
        (faulty.raises, "rank 1 raised ValueError: the data loader lost its place", TIME_LIMIT),
        (faulty.hangs, "rank 1 did not finish within 5", 5.0),
    ],
    ids=["killed", "raises", "hangs"],
)
def test_fault_in_a_step(
    trials: Trials, ranks: Pool, fault: faulty.Fault, cause: str, timeout: float, last: bool
) -> None:
    """If a rank is killed, raises or hangs mid-step, the error names it and shows every rank's position."""
    scenario = _scenario(trials, last)
    trials.runner.ran += 1
    ranks.run(faulty.train, trials.name, scenario, timeout=TIME_LIMIT)
    before = [psutil.Process(worker.process.pid) for worker in ranks._workers if worker.process]
    assert len(before) == 3
    with pytest.raises(RankFault) as failure:
        ranks.run(faulty.train, trials.name, scenario, fault, timeout=timeout)
    message = str(failure.value)
    assert cause in message.splitlines()[0], message
    for rank in range(3):
        assert re.search(rf"^ranks? [\d, ]*\b{rank}\b", message, re.MULTILINE), f"rank {rank} is missing in: {message}"
    if fault is faulty.hangs:
        assert "in hangs" in message, "the stack of the rank that hangs is missing"
    _, alive = psutil.wait_procs(before, timeout=TIME_LIMIT)
    assert not alive, f"processes stayed behind: {alive}"
    ranks.run(faulty.train, trials.name, scenario, timeout=TIME_LIMIT)


def _scenario(trials: Trials, last: bool) -> Scenario:
    """At the first or the last stage that the engine offers."""
    offered = [each for stage in range(4) if trials.offers(each := Scenario(world=3, stage=stage))]
    if not offered or (last and len(offered) == 1):
        pytest.skip(f"{trials.name} offers {len(offered)} stages")
    return offered[-1 if last else 0]
