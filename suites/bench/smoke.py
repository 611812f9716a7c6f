"""One small point of the grid, for the smoke test, which runs it in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zerobench.results import Json
from zerobench.results.identity import Case
from zerobench.suites.bench import cases, grid
from zerobench.suites.bench.replaying import CLOCK
from zerobench.suites.bench.runs import Runs

_BASE = grid.stages(True, "cpu", 2)[0].base
POINT = grid.Point(
    "smoke",
    _BASE.but(steps=4),
    ("reference", "torch-zero1", "zerobench.suites.project.cli.broken:Raises"),
    (3,),
    warmup=2,
)


@pytest.mark.parametrize(("point", "case"), cases.parameters([POINT]))
@pytest.mark.benchmark(timer=CLOCK)
def test_case(runs: Runs, carry: Callable[[Json, list[float]], None], point: grid.Point, case: Case) -> None:
    """As in the suites of stages and of scaling."""
    cases.check(runs, carry, point, case)
