"""Rows: what the suites of stages and of scaling make of a point of the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from zerobench.digests import case
from zerobench.results.document import Json
from zerobench.subjects import load
from zerobench.suites.bench.grid import Point
from zerobench.suites.bench.runs import Runs


def parameters(points: Iterable[Point]) -> list[Any]:
    """A test for each row of each point; what several points share, as compute-only, once."""
    found: dict[str, Any] = {}
    for point in points:
        for row in point.rows:
            name = f"{point.name}-{row.label.replace(' ', '-')}"
            key = case(row.subject, row.scenario)
            found.setdefault(key, pytest.param(point, row.subject, key, id=name))
    return list(found.values())


def check(runs: Runs, carry: Callable[[Json, list[float]], None], point: Point, subject: str, key: str) -> None:
    """Measure a row and hand its rounds on; the reference engine must be right, others may have failed or not."""
    row = runs.row(point, key)
    if row["verdict"] != "ok":
        report = pytest.fail if subject == "reference" else pytest.skip
        report(f"{row['verdict']}: {row['reason']}")
    carry({"row": row, "peak": runs.peak(point)}, row["time"]["seconds"])
    if row["judgement"] and load(subject).promises_bits:
        assert row["judgement"]["right"], row["judgement"]["message"]
