"""One small point of the grid, for the smoke test, which runs it in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zerobench.results.document import Json
from zerobench.suites.bench import grid, rows
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


@pytest.mark.parametrize(("point", "subject", "key"), rows.parameters([POINT]))
@pytest.mark.benchmark(timer=CLOCK)
def test_row(runs: Runs, carry: Callable[[Json, list[float]], None], point: grid.Point, subject: str, key: str) -> None:
    """As in the suites of stages and of scaling."""
    rows.check(runs, carry, point, subject, key)
