"""Smoke: one small point of the grid goes all the way into pytest-benchmark's JSON; runs with all other suites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from suites.bench import grid, rows
from suites.bench.replaying import CLOCK
from suites.bench.runs import Runs
from suites.cli.schema import errors, load
from zerobench.results import Json

_POINT = grid.Point("smoke", grid.stages(True, "cpu", 2)[0].base.but(steps=4), ("reference", "torch-zero1"), (3,), 2)
_SCHEMA = load("results.json")


@pytest.mark.benchmark(timer=CLOCK)
def test_a_row_travels(runs: Runs, carry: Callable[[Json, list[float]], None], benchmark: Any) -> None:
    """Its rounds are those that were measured, to the bit; its results fit the schema and say where time went."""
    rows.check(runs, carry, _POINT, "reference", 3)
    extra = benchmark.extra_info["zerobench"]
    assert list(errors(extra, _SCHEMA["$defs"]["extra_info"], _SCHEMA)) == []
    time = extra["row"]["time"]
    assert benchmark.stats.stats.data == time["seconds"]
    assert len(time["seconds"]) == _POINT.base.steps - _POINT.warmup
    assert all(seconds > 0 for phase, seconds in time["split"].items() if phase != "communication")
    assert time["split"]["communication"] >= 0
    assert 0 < time["utilisation"] < 1


def test_results_of_the_session(runs: Runs) -> None:
    """They hold every row of the point, compute-only too, with the environment of a rank."""
    runs.row(_POINT, "reference", 3)
    value = runs.document("pytest")
    assert value is not None
    assert list(errors(value, _SCHEMA, _SCHEMA)) == []
    assert {row["subject"] for row in value["rows"]} >= {"reference", "torch-zero1", "compute-only"}
    assert value["environment"]["world"] == _POINT.base.world
