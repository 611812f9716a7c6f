"""Smoke: one small point of the grid goes all the way into pytest-benchmark's JSON; runs with all other suites."""

from __future__ import annotations

import getpass
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suites.bench.smoke import POINT
from suites.cli.schema import errors, load
from zerobench.results import Json

_ROOT = Path(__file__).parents[2]
_SCHEMA = load("results.json")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The JSON of the point's benchmarks."""
    path = tmp_path_factory.mktemp("smoke") / "bench.json"
    command = [sys.executable, "-m", "pytest", "suites/bench/smoke.py", f"--benchmark-json={path}"]
    # Where tests run in several processes, pytest-benchmark measures nothing.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=_ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed, 1 skipped" in done.stdout
    assert "the flux is not aligned" in done.stdout
    value: Json = json.loads(path.read_text(encoding="utf-8"))
    return value


def test_rows_travel(written: Json) -> None:
    """The rounds are those that were measured, to the bit; the results fit the schema and say where time went."""
    assert len(written["benchmarks"]) == 3
    for benchmark in written["benchmarks"]:
        extra = benchmark["extra_info"]["zerobench"]
        assert list(errors(extra, _SCHEMA["$defs"]["extra_info"], _SCHEMA)) == []
        time = extra["row"]["time"]
        assert benchmark["stats"]["data"] == time["seconds"]
        assert len(time["seconds"]) == POINT.base.steps - POINT.warmup
        assert all(seconds > 0 for phase, seconds in time["split"].items() if phase != "communication")
        assert time["split"]["communication"] >= 0
        assert 0 < time["utilisation"] < 1


def test_results_travel(written: Json) -> None:
    """They hold every row of the point, also the one of a subject that failed, with the environment of a rank."""
    value = written["zerobench"]
    assert list(errors(value, _SCHEMA, _SCHEMA)) == []
    assert [row["verdict"] for row in value["rows"]] == ["ok", "ok", "failed", "ok"]
    assert value["environment"]["world"] == POINT.base.world
    assert written["machine_info"]["zerobench"] == value["environment"]


def test_no_names(written: Json) -> None:
    """No host, user or path is told; the failed subject's traceback, which has paths, is the results' own."""
    told = list(_strings([written["machine_info"], written["commit_info"]]))
    assert not {platform.node(), getpass.getuser()} & set(told)
    assert not [text for text in told if str(_ROOT) in text or str(Path.home()) in text]


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
