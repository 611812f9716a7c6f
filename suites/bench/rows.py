"""Rows: what the suites of stages and of scaling make of a point of the grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from suites.bench.grid import Point
from suites.bench.runs import Runs
from zerobench.bench import COMPUTE_ONLY, rows
from zerobench.case import case
from zerobench.results import Json
from zerobench.subjects import load


def parameters(points: Iterable[Point]) -> list[Any]:
    """A test for each row of each point; compute-only, which large points share, once."""
    found: dict[str, Any] = {}
    for point in points:
        for row in rows(point.base, point.subjects, point.stages):
            stage = None if row.subject == COMPUTE_ONLY else row.scenario.stage
            name = f"{point.name}-{row.subject}" + ("" if stage is None else f"-stage{stage}")
            found.setdefault(case(row.subject, row.scenario), pytest.param(point, row.subject, stage, id=name))
    return list(found.values())


def check(
    runs: Runs, carry: Callable[[Json, list[float]], None], point: Point, subject: str, stage: int | None
) -> None:
    """Measure a row and hand its rounds on; the reference engine must be right, others may have failed or not."""
    row = runs.row(point, subject, stage)
    if row["verdict"] != "ok":
        report = pytest.fail if load(subject).promises_bits else pytest.skip
        report(f"{row['verdict']}: {row['reason']}")
    carry({"row": row, "peak": runs.peak(point)}, row["time"]["seconds"])
    if row["judgement"] and load(subject).promises_bits:
        assert row["judgement"]["right"], row["judgement"]["message"]
