"""Stages: what each stage, offload setting, precision, accumulation and recomputation saves and costs, by subject."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zerobench.results import Json
from zerobench.results.identity import Case
from zerobench.suites.bench import cases, grid
from zerobench.suites.bench.replaying import CLOCK
from zerobench.suites.bench.runs import Runs, world_size


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    quick, device = metafunc.config.getoption("--quick"), metafunc.config.getoption("--device")
    points = grid.stages(quick, device, world_size(device))
    metafunc.parametrize(("point", "case"), cases.parameters(points))


@pytest.mark.benchmark(timer=CLOCK)
def test_case(runs: Runs, carry: Callable[[Json, list[float]], None], point: grid.Point, case: Case) -> None:
    """A subject's rounds, beside those of the others at the same point."""
    cases.check(runs, carry, point, case)
