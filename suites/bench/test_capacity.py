"""Capacity: how large a model does stage and offload make room for, in a given memory?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zerobench.machine.launch import Launch
from zerobench.results import Json
from zerobench.suites.bench import grid
from zerobench.suites.bench.replaying import CLOCK
from zerobench.suites.bench.runs import Runs, world_size


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    quick, device = metafunc.config.getoption("--quick"), metafunc.config.getoption("--device")
    found = grid.searches(quick, device, world_size(device))
    metafunc.parametrize("search", [pytest.param(search, id=search.name) for search in found])


@pytest.mark.benchmark(timer=CLOCK)
def test_largest_model(runs: Runs, carry: Callable[[Json, list[float]], None], search: grid.Search) -> None:
    """It is searched for in ranks that are started anew for each size, which launched ranks cannot be."""
    if Launch.seen():
        pytest.skip("launched ranks cannot be started again, and those of a model that is too large must be")
    found = runs.fit(search)
    runs.fits.append(found)
    assert found["verdict"] == "measured" or search.case.subject != "reference", found["reason"]
    if found["verdict"] != "measured":
        pytest.skip(found["reason"])
    if found["seconds"] is None:
        pytest.skip(f"not one layer trains in {search.limit} bytes")
    carry({"fit": found}, [found["seconds"]])
