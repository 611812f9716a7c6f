"""Baselines: which are made, refreshed and read, and a case or metric that only one side has."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from zerobench.cli import commands
from zerobench.gate import grid, revisions
from zerobench.gate.baseline import Baseline
from zerobench.gate.cases import common_platform, gated_cases
from zerobench.results import Json
from zerobench.scenario import Scenario
from zerobench.suites.meta.gate.given import Gate, bare, in_markdown
from zerobench.suites.support.checkout import ROOT
from zerobench.workload import models


@pytest.mark.parametrize(
    ("new", "metric"),
    [
        ("memory", "memory: optimizer"),
        ("memory", "memory: working"),
        ("traffic", "traffic: total calls"),
        ("digest", "trajectory"),
        ("held", "held by rank 0"),
    ],
)
def test_what_the_baseline_does_not_have_fails(gate: Gate, measured: dict[str, Json], new: str, metric: str) -> None:
    """A metric that is measured and is in no baseline, for each kind of rule."""
    without = copy.deepcopy(measured["Same"])
    without["cases"][0][new] = None
    assert gate(without, "--update")[0] == 0
    code, said = gate(measured["Same"])
    [line] = [line for line in said.splitlines() if f"| {in_markdown(metric)} " in line]
    assert (code, "new: commit it" in line) == (1, True)


def test_a_dropped_case_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """An entry of the baseline without a match; the case in its place is listed as new."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["id"] = "0123456789ab"
    code, said = gate(results)
    assert code == 1
    assert "an entry of the baseline that matches nothing" in said
    assert "new: nothing watches it" in said


def test_a_baseline_of_schema_1(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """Its name for a verdict was state: the gate reads it, and writes the names of today."""
    path = tmp_path / "baseline.json"
    text = path.read_text()
    path.write_text(text.replace('"schema": 3,', '"schema": 1,').replace('"verdict":', '"state":'))
    assert gate(measured["Same"])[0] == 0
    Baseline.read(path).write(path)
    assert path.read_text() == text


@pytest.mark.parametrize("engine", ["OneMoreByte", "Same"])
def test_update_makes_it_pass(gate: Gate, measured: dict[str, Json], engine: str) -> None:
    """The command in the failure's output is enough."""
    code, said = gate(measured[engine], "--update")
    assert (code, "1 cases" in said) == (0, True)
    assert gate(measured[engine])[0] == 0


def test_no_baseline_is_made_of_what_is_wrong(gate: Gate, measured: dict[str, Json]) -> None:
    """Nor from an empty result; both are exit code 3."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["verdict"] = "wrong"
    code, said = gate(results, "--update")
    assert (code, "wrong: no baseline is made of that" in said) == (3, True)
    assert gate({**measured["Same"], "cases": []}, "--update")[0] == 3
    code, said = gate(bare(measured["Same"], "unsupported", "SGD only"), "--update")
    assert (code, "nothing was measured" in said, "SGD only" in said) == (3, True, True)


def test_what_has_no_numbers_is_not_measured(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """If an unsupported case is unsupported in the baseline, too, it is right; alone it passes no gate."""
    path = tmp_path / "baseline.json"
    baseline = json.loads(path.read_text())
    for case in baseline["cases"].values():
        case.update(verdict="unsupported", exact={}, bounded={}, digests={})
    path.write_text(json.dumps(baseline))
    code, said = gate(bare(measured["Same"], "unsupported", "SGD only"))
    assert (code, "0 cases measured" in said) == (2, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no baseline"),
        ("{", "cannot read the baseline"),
        ("[]", "is not a baseline"),
        ('{"schema": 0}', "schema 0, expected 3"),
        ('{"schema": 1, "case_version": 0}', "case_version 0, expected 1"),
        ('{"schema": 1, "case_version": 1, "cases": {}}', "is not a baseline"),
    ],
)
def test_a_baseline_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    """Exit code 3 and one line."""
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_text(text)
    assert commands.main(["gate", "--baseline", str(path)]) == 3
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"schema": 3, "cases": []}', "[]", '{"a": 1}'])
def test_no_other_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Results, and other JSON, stay as they are; nothing is measured."""
    monkeypatch.setattr(revisions, "measure", lambda *_: pytest.fail("it was measured"))
    path = tmp_path / "results.json"
    path.write_text(text)
    for update in ([], ["--update"]):
        assert commands.main(["gate", "--baseline", str(path), *update]) == 3
        assert " no baseline" in (told := capsys.readouterr().err) or "is not a baseline" in told
        assert "Error(" not in told
    assert path.read_text() == text


@pytest.mark.slow
def test_the_example_of_the_pages_has_a_baseline(tmp_path: Path) -> None:
    """docs/how-to/add-a-subject.md: it is right and has numbers in the gate's grid, and known resident bytes."""
    page = (ROOT / "docs" / "how-to" / "add-a-subject.md").read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_engine.py").write_text(source, encoding="utf-8")
    results = revisions.measure(tmp_path, next(grid.accounted("my_engine:HandMade")))
    found = gated_cases([results])
    assert [(case.verdict, case.measured) for case in found.values()] == [
        ("right", True),
        *[("unsupported", False)] * 3,
    ]
    assert Baseline.of(found, common_platform([results])).cases.keys() == found.keys()
    case = results["cases"][0]
    count = len(list(models.shapes(Scenario.from_json(json.dumps(case["scenario"]))).parameters()))
    fp32 = 4 * case["parameters"]
    for held in case["memory"]["measured"]:
        assert (held["parameters"], held["gradients"], held["optimizer"]) == (fp32, 0, 2 * fp32 + 4 * count)
