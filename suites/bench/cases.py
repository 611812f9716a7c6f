"""The tests of a point of the grid, one for each of its cases, for the suites of stages and of scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from zerobench.results import Json
from zerobench.results.identity import Case
from zerobench.subjects import load
from zerobench.suites.bench.grid import Point
from zerobench.suites.bench.runs import Runs
from zerobench.verdict import RAN


def parameters(points: Iterable[Point]) -> list[Any]:
    """A test for each case of each point; a case that several points share, such as compute-only, once."""
    found: dict[Case, Any] = {}
    for point in points:
        for case in point.cases:
            found.setdefault(case, pytest.param(point, case, id=f"{point.name}-{case.label.replace(' ', '-')}"))
    return list(found.values())


def check(runs: Runs, carry: Callable[[Json, list[float]], None], point: Point, case: Case) -> None:
    """Measure a case and hand its rounds on; the reference engine must be right, others may have failed or not."""
    found = runs.case(point, case)
    if found["verdict"] not in RAN:
        report = pytest.fail if case.subject == "reference" else pytest.skip
        report(f"{found['verdict']}: {found['reason']}")
    carry({"case": found, "peak": runs.peak(point)}, found["time"]["seconds"])
    if load(case.subject).promises_bits:
        assert found["verdict"] != "wrong", found["judgement"]["message"]
