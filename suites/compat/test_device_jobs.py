"""On one rank, and on a GPU with ``--device cuda``, jobs have the same numbers at every stage, with offload or not."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from zerobench.ranks import Pool
from zerobench.suites.compat.device_jobs import JOBS
from zerobench.suites.compat.loops import STAGES

pytestmark = pytest.mark.usefixtures("reference")


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One rank on the device."""
    with Pool(1, request.config.getoption("--device")) as ranks:
        yield ranks


def _numbers(group: dist.ProcessGroup, name: str, stage: int, device: str) -> list[float]:
    return JOBS[name].run(stage, device)


@pytest.mark.rotating
@pytest.mark.parametrize("name", JOBS)
def test_stages(one: Pool, name: str) -> None:
    """The numbers of stages 1 to 3 are those of stage 0."""
    [expected] = one.run(_numbers, name, 0, one.device)
    assert not any(map(math.isnan, expected))
    for stage in STAGES[1:]:
        assert one.run(_numbers, name, stage, one.device) == [expected]
