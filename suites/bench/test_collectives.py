"""Collectives: what the process group reaches on this machine, and the engine's reduce-scatter beside the backend's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zerobench.results import Json
from zerobench.suites.bench.collectives import COLLECTIVES, result, sizes
from zerobench.suites.bench.replaying import CLOCK
from zerobench.suites.bench.runs import Runs, world_sizes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    quick, device = metafunc.config.getoption("--quick"), metafunc.config.getoption("--device")
    metafunc.parametrize("world", [world for world in world_sizes(device) if world > 1 and not (quick and world > 2)])
    metafunc.parametrize("size", sizes(quick, device))
    metafunc.parametrize("name", COLLECTIVES)


@pytest.mark.benchmark(timer=CLOCK)
def test_bandwidth(runs: Runs, carry: Callable[[Json, list[float]], None], name: str, size: int, world: int) -> None:
    """All collectives of a size take turns, a round of each."""
    seconds = runs.collective_rounds(world, size)[name]
    found = result(name, size, world, runs.backend, seconds)
    runs.collectives.append(found)
    carry({"collective": found}, seconds)
