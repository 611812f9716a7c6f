"""The measurement of power: Scenarios are counted, and records survive an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from zerobench.conform import running
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import Difference
from zerobench.judge.judgement import disagreement
from zerobench.scenario import Scenario
from zerobench.suites.meta.power import conforming, journal, released, runs, seeds
from zerobench.suites.meta.power.catching import Catching, Check
from zerobench.suites.meta.power.records import Record, Records
from zerobench.suites.meta.power.runs import Run
from zerobench.suites.meta.power.seeds import Seed
from zerobench.suites.support.drawing import draw
from zerobench.suites.support.trials import Trials

_NONE = cast(Trials, None)
_FIVE = settings(max_examples=5, phases=[Phase.generate], derandomize=True, database=None, deadline=None)


def _property(scenario: Any) -> None:
    """Its name and file are those of the failure."""


def _checks(passing: int) -> Iterator[Check]:
    """A check that draws five values and fails on all after the first ``passing``, and one of a fixed Scenario."""
    ran: list[Any] = []

    def fails(_: Trials, scenario: Any) -> None:
        ran.append(scenario)
        if len(ran) > passing:
            found = Difference("x", "canonical", Scenario(), 0, 0, "norm", "", "1.0", "2.0")
            raise disagreement(found, ReplayCommand(Scenario(), "x"))

    yield draw(fails, st.integers(0, 10**6), _FIVE)
    yield lambda trials: fails(trials, None)


def test_scenarios_are_counted() -> None:
    """The failing one counts, and so do those of the checks before it."""
    for passing, scenarios in ((0, 1), (2, 3), (5, 6)):
        caught = Catching(_NONE).failure(_property, _checks(passing))
        assert caught is not None
        assert caught.scenarios == scenarios
        assert caught.property == "_property"
    assert Catching(_NONE).failure(_property, _checks(6)) is None


def test_half_a_line_is_no_record(tmp_path: Path) -> None:
    """A session that was interrupted while it wrote leaves half a line; the next one tries that engine again."""
    path = tmp_path / "historical.jsonl"
    one, other = Record("One", "bits", "test_x", 3, "norm"), Record("Other", "none")
    for each in (one, other):
        Records(path).add(each)
    assert [Records(path).of(each.mutant, each.promise) for each in (one, other)] == [one, other]
    path.write_text(path.read_text(encoding="utf-8")[:-4], encoding="utf-8")
    assert Records(path).of("One", "bits") == one
    assert Records(path).of("Other", "none") is None


def test_runs_are_kept(tmp_path: Path) -> None:
    """In the order of the runs."""
    path = tmp_path / "alarms.jsonl"
    made = [Run("One", seed, 2, 70, failure) for seed, failure in ((1, ""), (2, "differs"))]
    for each in made:
        journal.add(path, each)
    assert runs.recorded(path) == made


def test_a_run_without_scenarios_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """If pytest ends early, nothing was found because nothing was tried."""
    header = {"subject": "torch-ddp", "profile": "quick", "zerobench": "0", "versions": {"torch": "2.13.0"}}
    monkeypatch.setattr(running, "examine", lambda *_: [header])
    with pytest.raises(SystemExit, match="no Scenario ran"):
        conforming.examine("torch-ddp", "quick", 1)


def test_the_table_counts_the_seeds_of_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the Scenarios of all seeds, the known findings once each, and the number of the others."""
    path = tmp_path / "released.jsonl"
    journal.add(path, Seed("torch-ddp", "2.13.0+cpu", "quick", 1, 70, ["a", "b"], []))
    journal.add(path, Seed("torch-ddp", "2.13.0+cpu", "quick", 2, 930, ["b"], ["test_x"]))
    monkeypatch.setattr(released, "recorded", lambda: seeds.recorded(path))
    assert released.part().splitlines()[-1] == "| torch-ddp | 2.13.0 | quick | 2 | 1,000 | 2 | 1 |"
