"""Smoke: one small point of the grid goes all the way into pytest-benchmark's JSON; runs with all other suites."""

from __future__ import annotations

import getpass
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from zerobench.results import Json, schema
from zerobench.suites.bench import capacity, grid
from zerobench.suites.bench.kernels import test_kernels, turns
from zerobench.suites.bench.kernels.workloads import WORKLOADS, rivals
from zerobench.suites.bench.runs import threads
from zerobench.suites.bench.smoke import POINT
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The JSON of the point's benchmarks."""
    path = tmp_path_factory.mktemp("smoke") / "bench.json"
    command = ["-m", "pytest", "suites/bench/smoke.py", f"--benchmark-json={path}", "-p", "no:cacheprovider"]
    done = forked.run(*command, cwd=ROOT, env=outside(), timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed, 1 skipped" in done.stdout
    assert "the flux is not aligned" in done.stdout
    value: Json = json.loads(path.read_text(encoding="utf-8"))
    return value


def test_cases_travel(written: Json) -> None:
    """The rounds are those that were measured, to the bit; the results fit the schema and say where time went."""
    assert len(written["benchmarks"]) == 3
    for benchmark in written["benchmarks"]:
        extra = benchmark["extra_info"]["zerobench"]
        assert schema.flaw(extra, "extra_info") == ""
        time = extra["case"]["time"]
        assert benchmark["stats"]["data"] == time["seconds"]
        assert len(time["seconds"]) == POINT.base.steps - POINT.warmup
        assert all(seconds > 0 for phase, seconds in time["split"].items() if phase != "communication")
        assert time["split"]["communication"] >= 0
        assert 0 < time["utilisation"] < 1


def test_results_travel(written: Json) -> None:
    """They hold every case of the point, also the one whose subject failed, with the environment of a rank."""
    value = written["zerobench"]
    assert schema.flaw(value) == ""
    assert [case["verdict"] for case in value["cases"]] == ["right", "right", "raised", "measured"]
    assert value["environment"]["world"] == POINT.base.world
    assert written["machine_info"]["zerobench"] == value["environment"]


def test_no_names(written: Json) -> None:
    """No host, user or path is told; the failed subject's traceback, which has paths, is the results' own."""
    told = list(_strings([written["machine_info"], written["commit_info"]]))
    assert not {platform.node(), getpass.getuser()} & set(told)
    assert not [text for text in told if str(ROOT) in text or str(Path.home()) in text]


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_travel(name: str) -> None:
    """Each is timed beside a copy and all its rivals, and what comes of it fits the schema."""
    workload = WORKLOADS[name](1 << 14, "cpu")
    seconds = turns.by_turns(workload, "cpu", rounds=3)
    assert seconds.keys() == {turns.KERNEL, *rivals(name, "cpu")}
    for against in rivals(name, "cpu"):
        found = turns.result(name, 1 << 14, workload.moved, "cpu", seconds, against)
        assert schema.flaw({"schema": schema.VERSION, "kernel": found}, "extra_info") == ""
        assert found["ratio"] == statistics.median(seconds[against]) / found["seconds"] > 0


def test_kernels_that_do_not_fit_are_skipped() -> None:
    """With what torch says of the memory: a small GPU does not hold the largest sizes."""
    runs = mock.Mock()
    runs.kernel.side_effect = torch.OutOfMemoryError("tried to allocate 56 GiB")
    with pytest.raises(pytest.skip.Exception, match="adam_step on 2147483648 elements: tried to allocate 56 GiB"):
        test_kernels.test_bandwidth(runs, mock.Mock(), "adam_step", 1 << 31, "copy")


def test_as_many_threads_on_one_rank_as_on_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else scaling would compare a rank that has all cores with one that has a part of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert threads("cpu") == 4


@pytest.mark.parametrize("fit", range(8))
def test_the_search_finds_the_largest(fit: int) -> None:
    """And the seconds of that one."""
    tried: list[int] = []

    def trains(layers: int) -> float | None:
        tried.append(layers)
        return layers / 10 if layers <= fit else None

    assert capacity.largest(trains, 7) == (fit, fit / 10 if fit else None)
    assert len(tried) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("limit", "layers"), [(1 << 20, 0), (1 << 30, 1)])
def test_memory_is_limited(limit: int, layers: int) -> None:
    """One layer trains in 1 GiB and not in 1 MiB, and what comes of it fits the schema."""
    search = replace(grid.searches(True, "cpu", 2)[0], limit=limit, most=1)
    found = capacity.measure(search, 1, print)
    assert (found["verdict"], found["reason"]) == ("measured", "")
    assert (found["layers"], found["parameters"] > 0) == (layers, layers == 1)
    assert schema.flaw({"schema": schema.VERSION, "fit": found}, "extra_info") == ""
