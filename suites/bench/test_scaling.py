"""Scaling: the same work for each rank on 1, 2 and 4 ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zerobench.results import Json
from zerobench.results.identity import Case
from zerobench.suites.bench import cases, grid
from zerobench.suites.bench.replaying import CLOCK
from zerobench.suites.bench.runs import Runs, world_sizes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    quick, device = metafunc.config.getoption("--quick"), metafunc.config.getoption("--device")
    metafunc.parametrize(("point", "case"), cases.parameters(grid.scaling(quick, device, world_sizes(device))))


@pytest.mark.benchmark(timer=CLOCK)
def test_case(runs: Runs, carry: Callable[[Json, list[float]], None], point: grid.Point, case: Case) -> None:
    """A subject's rounds on so many ranks."""
    cases.check(runs, carry, point, case)
