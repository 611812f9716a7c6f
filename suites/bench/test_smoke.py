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
    """The rounds are the measured ones, to the bit; the results fit the schema and have the parts of a step's time."""
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
    """The descriptions have no host, user or path; the results have the failed subject's traceback, with paths."""
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
    """Each is timed beside a copy and all its rivals, and the result fits the schema."""
    workload = WORKLOADS[name](1 << 14, "cpu")
    seconds = turns.by_turns(workload, "cpu", rounds=3)
    assert seconds.keys() == {turns.KERNEL, *rivals(name, "cpu")}
    for against in rivals(name, "cpu"):
        found = turns.result(name, 1 << 14, workload.moved, "cpu", seconds, against)
        assert schema.flaw({"schema": schema.VERSION, "kernel": found}, "extra_info") == ""
        assert found["ratio"] == statistics.median(seconds[against]) / found["seconds"] > 0


def test_kernels_that_do_not_fit_are_skipped() -> None:
    """The reason is torch's message on memory: a small GPU does not hold the largest sizes."""
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
    """The search also returns the seconds of that one."""
    tried: list[int] = []

    def trains(layers: int) -> float | None:
        tried.append(layers)
        return layers / 10 if layers <= fit else None

    assert capacity.largest(trains, 7) == (fit, fit / 10 if fit else None)
    assert len(tried) == len(set(tried)) <= 5
    assert max(tried, default=0) <= 7


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("limit", "layers"), [(1 << 20, 0), (1 << 30, 1)])
def test_memory_is_limited(limit: int, layers: int) -> None:
    """One layer trains in 1 GiB and not in 1 MiB, and the result fits the schema."""
    search = replace(grid.searches(True, "cpu", 2)[0], limit=limit, most=1)
    found = capacity.measure(search, 1, print)
    assert (found["verdict"], found["reason"]) == ("measured", "")
    assert (found["layers"], found["parameters"] > 0) == (layers, layers == 1)
    assert schema.flaw({"schema": schema.VERSION, "fit": found}, "extra_info") == ""


def test_the_search_gallops() -> None:
    """Few models are built, and none much larger than those that fit."""
    tried: list[int] = []

    def trains(layers: int) -> float | None:
        tried.append(layers)
        return 1.0 if layers <= 70 else None

    assert capacity.largest(trains, 128) == (70, 1.0)
    assert tried[0] == 64
    assert max(tried) <= 2 * 70
    assert len(tried) <= 8


def test_the_search_is_bounded_by_the_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the bound the states are within the limit, and the host; beyond it they are not."""
    search = replace(grid.searches(True, "cuda", 1)[0], limit=16 << 30)
    most = capacity.bound(search)
    assert capacity._states(search, most)[0] <= search.limit < capacity._states(search, most + 1)[0]
    assert most < 10
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << (12 if name == "SC_PAGE_SIZE" else 19))  # 2 GiB
    assert capacity.bound(search) < most


@pytest.mark.parametrize("name", ["gpt2-xl", "vit-1b"])
def test_one_gpu_holds_one_large_engine_at_a_time(name: str) -> None:
    """Beside compute-only; a model whose states would fill the disk is not offloaded to it."""
    points = [point for point in grid.stages(False, "cuda", 1) if point.name.startswith(name)]
    assert all(len(point.cases) == 2 for point in points)
    assert len({point.name for point in points}) == len(points)
    targets = {case.scenario.optimizer_at for point in points for case in point.cases}
    assert targets == {"none", "cpu"} | ({"nvme"} if name == "vit-1b" else set())
