"""Smoke: one small point of the grid goes all the way into pytest-benchmark's JSON; runs with all other suites."""

from __future__ import annotations

import getpass
import json
import os
import platform
import statistics
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from zerobench.model_specs import Gpt
from zerobench.results import Json, schema
from zerobench.results.identity import Case
from zerobench.scenario import Scenario
from zerobench.suites.bench import capacity, grid
from zerobench.suites.bench.kernels import test_kernels, turns
from zerobench.suites.bench.kernels.workloads import WORKLOADS, rivals
from zerobench.suites.bench.runs import threads
from zerobench.suites.bench.smoke import POINT
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT
from zerobench.workload import models
from zerobench.workload.sizes import SIZES


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


def test_ranks_that_hang_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the time limit of a step, and not as if the model did not fit."""
    monkeypatch.setattr(capacity, "_train", _hangs)
    monkeypatch.setitem(capacity.IDLE, "cpu", 0.5)
    found = capacity.measure(replace(grid.searches(True, "cpu", 2)[0], most=1), 1, print)
    assert (found["verdict"], "did nothing for 0.5 s" in found["reason"]) == ("timeout", True)


def _hangs(*_: object) -> float:
    threading.Event().wait()
    return 0.0


def test_the_search_gallops() -> None:
    """It begins at the bound, and if that is near, few models are built."""
    tried: list[int] = []

    def trains(layers: int) -> float | None:
        tried.append(layers)
        return 1.0 if layers <= 70 else None

    assert capacity.largest(trains, 70) == (70, 1.0)
    assert tried == [70]
    tried.clear()
    assert capacity.largest(trains, 75) == (70, 1.0)
    assert tried[0] == 75
    assert len(tried) <= 6


def test_weights_of_the_search_are_not_drawn() -> None:
    """They are constant, and the caller's next model is drawn again."""
    scenario = Scenario(model=Gpt(layers=1), world=1)
    drawn = dict(models.build(scenario).named_parameters())
    with models.undrawn():
        constant = dict(models.build(scenario).named_parameters())
    assert all(bool((parameter == parameter.flatten()[0]).all()) for parameter in constant.values())
    for name, parameter in models.build(scenario).named_parameters():
        assert torch.equal(parameter, drawn[name])


def test_a_model_is_drawn_once() -> None:
    """Each copy has the drawn weights, also after another copy has been trained; tied weights stay tied."""
    scenario = Scenario(model=Gpt(layers=1, tied=True), world=1)
    drawn = dict(models.build(scenario).named_parameters())
    with mock.patch("zerobench.workload.models._drawn", side_effect=models._drawn) as draws:
        for _ in range(2):
            with models.drawn_once():
                built = models.build(scenario)
            copied = dict(built.named_parameters())
            assert drawn.keys() == copied.keys()
            assert all(torch.equal(parameter, copied[name]) for name, parameter in drawn.items())
            with torch.no_grad():
                next(built.parameters()).zero_()
        assert draws.call_count == 1


def test_the_search_is_bounded_by_the_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the bound the states are within the limit, and the host; beyond it they are not."""
    search = replace(grid.searches(True, "cuda", 1)[0], limit=16 << 30)
    most = capacity.bound(search)
    assert capacity._states(search, most)[0] <= search.limit < capacity._states(search, most + 1)[0]
    assert most < 10
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << (12 if name == "SC_PAGE_SIZE" else 19))  # 2 GiB
    assert capacity.bound(search) < most


def _cases_on_one_gpu(name: str) -> list[list[Case]]:
    """Those of each point of a model."""
    return [point.cases for point in grid.stages(False, "cuda", 1) if point.name.startswith(name)]


def test_one_gpu_holds_one_of_the_largest_engines_at_a_time() -> None:
    """Beside compute-only; its states, which would fill a disk, are not offloaded to files."""
    points = _cases_on_one_gpu("gpt2-xl")
    assert all(len(cases) == 2 for cases in points)
    assert {case.scenario.optimizer_at for cases in points for case in cases} == {"none", "cpu"}


def test_one_gpu_holds_the_large_engines_of_a_point() -> None:
    """At 18 bytes a parameter they leave room for activations in the 139 GiB of an H200."""
    parameters = sum(p.numel() for p in models.shapes(Scenario(model=SIZES["vit-1b"])).parameters())
    for cases in _cases_on_one_gpu("vit-1b"):
        held = [case for case in cases if case.scenario.optimizer_at == "none"]
        assert 18 * parameters * len(held) < 100 << 30
