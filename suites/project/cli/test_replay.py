"""Replay: the settings of a case of ``zerobench run``, with memory in proportion to the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from zerobench.bench.replay import compare_again
from zerobench.errors import UsageError
from zerobench.judge.command import ReplayCommand
from zerobench.ranks import Pool
from zerobench.ranks.pool import TIME_LIMIT
from zerobench.scenario import Odd, Scenario

_STALE = "zerobench.suites.project.cli.broken:Stale"


class _Watched(Pool):
    """Records its arguments."""

    threads_given = 0
    limits: tuple[float, ...] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        type(self).threads_given = self.threads

    def run(self, task: Callable[..., Any], *args: Any, **how: Any) -> list[Any]:
        type(self).limits += (how["timeout"],)
        return super().run(task, *args, **how)


def test_threads_and_time_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks share all cores, and each step has the time limit."""
    monkeypatch.setattr("zerobench.bench.replay.Pool", _Watched)
    verdict = compare_again(ReplayCommand(Scenario(model=Odd(hidden=(4,)), world=1, steps=2), "reference"))
    assert verdict.right
    assert _Watched.threads_given == len(os.sched_getaffinity(0))
    assert set(_Watched.limits) == {2 * TIME_LIMIT}


def test_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states are compared after the last step only, which still catches a wrong engine."""
    monkeypatch.setattr("zerobench.bench.replay._ROOM", 0)
    scenario = Scenario(model=Odd(hidden=(14, 14)), world=2, stage=3, steps=2)
    right, wrong = compare_again(ReplayCommand(scenario, "reference")), compare_again(ReplayCommand(scenario, _STALE))
    assert right.text.startswith("reference: right, bit for bit")
    assert not wrong.right
    assert wrong.finding
    assert (wrong.finding.step, wrong.finding.part, wrong.finding.rank) == (1, "parameters", 1)


def test_a_configuration_that_the_subject_refuses() -> None:
    """One line, not the ranks' tracebacks."""
    scenario = Scenario(stage=1, world=1, offload_optimizer="cpu", offload_ratio=1.5)
    with pytest.raises(UsageError, match=r"reference: .*less than or equal to 1"):
        compare_again(ReplayCommand(scenario, "reference"))
