"""Reading results: all schemas, pytest-benchmark's files, merging, and refusals; the two commands on top."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zerobench.cli import commands
from zerobench.errors import UsageError
from zerobench.results import Json, schema
from zerobench.results.files import read, read_all
from zerobench.results.identity import Case
from zerobench.results.merging import merge
from zerobench.results.versions import upgrade
from zerobench.scenario import Scenario
from zerobench.suites.project.reports import sample

#: Of real runs, as the older schemas had them.
_SCHEMA_1, _SCHEMA_2 = (Path(__file__).parent / f"schema-{version}.json" for version in (1, 2))
_OLD_VERDICTS = {"right": "ok", "wrong": "ok", "measured": "ok", "raised": "failed"}


def _file(directory: Path, name: str, value: Any) -> Path:
    path = directory / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def _schema_2() -> Json:
    """The sample in the words of schema 2."""
    value = sample.results() | {"schema": 2}
    rows = [_row(case) for case in value.pop("cases")]
    fits = [fit | {"verdict": _OLD_VERDICTS[fit["verdict"]]} for fit in value["fits"]]
    return value | {"rows": rows, "fits": fits}


def _row(case: Json) -> Json:
    """A case in the words of schema 2."""
    kept = {name: item for name, item in case.items() if name not in ("id", "held")}
    judgement = case["judgement"] and case["judgement"] | {"right": case["verdict"] != "wrong"}
    verdict = _OLD_VERDICTS.get(case["verdict"], case["verdict"])
    return kept | {"case": case["id"], "verdict": verdict, "judgement": judgement}


def _schema_1() -> Json:
    """The sample without what schema 2 added."""
    value = _schema_2() | {"schema": 1}
    for part in ("case_version", "peaks", "collectives", "kernels", "fits"):
        del value[part]
    for row in value["rows"]:
        for part in ("case", "model", "parameters", "digest", "offload"):
            del row[part]
        for part in ("split", "samples_per_second", "flops", "utilisation"):
            (row["time"] or {}).pop(part, None)
    return value


def _pytest_benchmark() -> Json:
    """As pytest-benchmark writes it: what was timed as benchmarks, all results beside them."""
    value = sample.results()
    timed = [{"case": case, "peak": value["peaks"][0]} for case in value["cases"] if case["time"]]
    carried = [{"extra_info": {"zerobench": {"schema": 3, **item}}} for item in timed]
    return {"machine_info": {"zerobench": value["environment"]}, "benchmarks": carried, "zerobench": value}


def _one_row(change: Callable[[Json], object]) -> Json:
    """Schema 1, its first row changed."""
    value = _schema_1()
    change(value["rows"][0])
    return value


def test_schema_1_is_schema_3_with_less(tmp_path: Path) -> None:
    """What it does not say is None, and what it says stays."""
    old = _schema_1()
    first = old["rows"][0]
    value = read(_file(tmp_path, "old.json", old))
    case = value["cases"][0]
    assert (value["schema"], value["collectives"], case["offload"]) == (3, None, None)
    assert case["time"]["split"] is None
    assert case["memory"] == first["memory"]
    assert case["id"] == Case(first["subject"], Scenario.from_json(json.dumps(first["scenario"]))).id
    assert case["model"] == old["settings"]["model"]
    assert upgrade(value) == value
    assert schema.flaw(value) == ""


def test_schema_2_is_schema_3_in_other_words(tmp_path: Path) -> None:
    """Every verdict, judgement and id of the sample comes back."""
    assert read(_file(tmp_path, "old.json", _schema_2())) == sample.results()


def test_a_real_run_of_schema_1() -> None:
    """Everything was right but compute-only, which nobody judges; the ids are those of then."""
    value = read(_SCHEMA_1)
    assert [case["verdict"] for case in value["cases"]] == ["right"] * 7 + ["measured"]
    assert value["cases"][1]["id"] == "827e66938045"
    assert schema.flaw(value) == ""


def test_a_real_run_of_schema_2() -> None:
    """Its rows are the cases, less the words that are no longer used."""
    old, value = json.loads(_SCHEMA_2.read_text(encoding="utf-8")), read(_SCHEMA_2)
    assert [case["verdict"] for case in value["cases"]] == ["right", "right", "measured"]
    for row, case in zip(old["rows"], value["cases"], strict=True):
        assert case["id"] == row["case"] == Case(row["subject"], Scenario.from_json(json.dumps(row["scenario"]))).id
        kept = row.keys() - {"case", "verdict", "judgement"}
        assert {name: case[name] for name in kept} == {name: row[name] for name in kept}
        if row["judgement"]:
            assert case["judgement"] | {"right": True} == row["judgement"]
    assert {name: value[name] for name in old.keys() - {"schema", "rows"}} == {
        name: old[name] for name in old.keys() - {"schema", "rows"}
    }


def test_pytest_benchmark(tmp_path: Path) -> None:
    """All results are read, also of the cases that have no time and are no benchmarks."""
    plain = upgrade(sample.results())
    assert {case["verdict"] for case in plain["cases"]} > {"right", "wrong", "measured"}
    assert read(_file(tmp_path, "bench.json", _pytest_benchmark())) == plain
    assert commands.main(["report", str(tmp_path / "bench.json"), "--out", str(tmp_path / "out")]) == 0
    assert read(tmp_path / "out" / "results.json") == plain


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """NaN and infinities, which JSON has not and Python writes, are not known; the report can be written."""
    value = sample.results()
    value["cases"][0]["time"]["ratio"], value["budget"]["error"] = math.nan, math.inf
    path = _file(tmp_path, "nan.json", value)
    assert (read(path)["cases"][0]["time"]["ratio"], read(path)["budget"]["error"]) == (None, None)
    assert commands.main(["report", str(path), "--out", str(tmp_path / "out")]) == 0


def test_merge(tmp_path: Path) -> None:
    """Cases of both; the settings in which they agree; dates of both; one compute-only of each."""
    value = sample.results()
    one, two = copy.deepcopy(value), copy.deepcopy(value)
    one["cases"], two["cases"] = [value["cases"][0], value["cases"][-1]], [value["cases"][1], value["cases"][-1]]
    two["settings"]["warmup"] = 7
    two["environment"]["date"] = "2026-02-02T00:00:00+00:00"
    merged = read_all([_file(tmp_path, "one.json", one), _file(tmp_path, "two.json", two)])
    assert [(case["subject"], case["stage"]) for case in merged["cases"]] == [
        ("reference", 0), ("compute-only", None), ("reference", 1), ("compute-only", None)
    ]  # fmt: skip
    assert merged["settings"]["warmup"] is None
    assert merged["settings"]["model"] == "mini"
    assert merged["environment"]["date"] == [value["environment"]["date"], "2026-02-02T00:00:00+00:00"]
    assert merged["environment"]["cpu"] == value["environment"]["cpu"]
    assert len(merged["peaks"]) == 1
    assert schema.flaw(merged) == ""


def test_what_is_of_the_moment_does_not_hinder_a_merge(tmp_path: Path) -> None:
    """The GPUs are the same, hot or cold, and what differs stands side by side: of lists each as it is."""
    values = [copy.deepcopy(sample.results()) for _ in range(3)]
    for at, (value, heat, clocks) in enumerate(zip(values, ("35", "61", "35"), ([2, 3], [2, 3], [1, 3]), strict=True)):
        value["cases"] = value["cases"][at : at + 1]
        value["environment"] |= {"gpu": sample.gpu(heat), "cpu_mhz": clocks}
    merged = read_all([_file(tmp_path, f"{at}.json", value) for at, value in enumerate(values)])["environment"]
    assert merged["cpu_mhz"] == [[2, 3], [1, 3]]
    assert (merged["gpu"]["names"], merged["gpu"]["driver"]) == (sample.gpu("0")["names"], sample.gpu("0")["driver"])
    assert merged["gpu"]["state"]["temperature.gpu"] == [["35", "35"], ["61", "61"]]


_CLASHES: dict[str, Callable[[Json], object]] = {
    "cpu differs": lambda value: value["environment"].update(cpu="another"),
    "torch differs": lambda value: value["environment"].update(torch="2.12.0"),
    "gpu differs": lambda value: value["environment"].update(gpu=sample.gpu("35")),
    "trained on different texts": lambda value: value["text"].update(sha256="0" * 64),
    "cases are of different versions": lambda value: value.update(case_version=2),
    "reference stage 0 (f66253d82c23) is in 'two' and before it": lambda value: None,
}


@pytest.mark.parametrize("says", _CLASHES)
def test_what_cannot_be_merged(says: str) -> None:
    """Other machines and versions, and a case that both have: that is for compare."""
    one, two = upgrade(sample.results()), upgrade(sample.results())
    _CLASHES[says](two)
    with pytest.raises(UsageError) as refused:
        merge({"one": one, "two": two})
    assert says in str(refused.value)


_UNREADABLE: dict[str, Callable[[Json], Any]] = {
    "schema 4; this zerobench reads 1, 2 and 3": lambda value: value | {"schema": 4},
    "not a results.json of zerobench": lambda value: [value],
    "$: 'environment' is a required": lambda value: {
        name: part for name, part in value.items() if name != "environment"
    },
    "$.cases[0].time.median: 'long' is not": lambda value: value["cases"][0]["time"].update(median="long") or value,
    "$.collectives[0]: 'bytes' is a required": lambda value: value["collectives"][0].pop("bytes") and value,
    "$.cases[0]: 'time' is a required": lambda value: (
        value | {"cases": [{k: v for k, v in value["cases"][0].items() if k != "time"}]}
    ),
    "$.cases[0].verdict: 'ok' is not": lambda value: value | {"cases": [value["cases"][0] | {"verdict": "ok"}]},
    "row 0 has no 'verdict'": lambda value: _schema_1() | {"rows": [{"subject": "reference", "stage": 0}]},
    "no 'environment' in it": lambda value: {n: part for n, part in _schema_1().items() if n != "environment"},
    "row 0 has no 'time'": lambda value: _one_row(lambda row: row.pop("time")),
    "row 0 has the verdict 'good'": lambda value: _one_row(lambda row: row.update(verdict="good")),
    "unknown field of scenario 'stge'": lambda value: (
        value | {"cases": [value["cases"][0] | {"scenario": {"stge": 1}}]}
    ),
    "not in the form of schema 1: 'NoneType'": lambda value: _schema_1() | {"rows": None},
    "not in the form of schema 1: 'list'": lambda value: _schema_1() | {"settings": ["mini"]},
    "results.json): $.cases[0].time.median: 'long'": lambda value: _one_row(
        lambda row: row["time"].update(median="long")
    ),
    "$.cases[0].memory: [] is not": lambda value: _one_row(lambda row: row.update(memory=[])),
    "$.cases[0].time.median: None is not": lambda value: value["cases"][0]["time"].update(median=math.nan) or value,
    "pytest-benchmark's, without zerobench's results": lambda value: {"machine_info": {}, "benchmarks": []},
    "$.cases[0].time.ratio: 'high' is not": lambda value: (
        value["cases"][0]["time"].update(ratio="high") or {"machine_info": {}, "benchmarks": [], "zerobench": value}
    ),
}


@pytest.mark.parametrize("says", _UNREADABLE)
def test_what_is_none_of_ours(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear line with the file's name; report ends with 2, compare with 3; nothing is written."""
    monkeypatch.chdir(tmp_path)
    path = _file(tmp_path, "given.json", _UNREADABLE[says](sample.results()))
    for arguments, code in ((["report", str(path)], 2), (["compare", str(path), str(path)], 3)):
        assert commands.main(arguments) == code
        output = capsys.readouterr()
        assert (output.out, output.err.count("\n")) == ("", 1)
        assert says in output.err
        assert "given.json" in output.err
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        ("report no.json", "cannot read the results 'no.json': No such file", 2),
        ("report text", "'text' are not JSON", 2),
        ("compare text text", "'text' are not JSON", 3),
        ("report", "required: RESULTS", 2),
        ("compare one", "required: HEAD", 3),
    ],
)
def test_bad_input(
    arguments: str, says: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One clear line."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("some text")
    assert commands.main(arguments.split()) == code
    assert says in capsys.readouterr().err


def test_compare_prints_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Markdown and as JSON; the exit code is the comparison's; times say that they judge nothing."""
    base = json.loads(_SCHEMA_1.read_text(encoding="utf-8"))
    head = copy.deepcopy(base)
    head["rows"][2]["memory"]["measured"][1]["optimizer"] += 4
    head["rows"][1].update(verdict="crashed", reason="rank 1 | was killed")
    paths = [str(_file(tmp_path, "base.json", base)), str(_file(tmp_path, "head.json", head))]
    assert commands.main(["compare", *paths]) == 1
    said = capsys.readouterr().out
    [change] = [line for line in said.splitlines() if "memory: optimizer" in line]
    cells = [cell.strip() for cell in change.strip("|").split("|")]
    assert cells == [
        "reference stage 2 (c2c079d95b21)",
        "memory: optimizer",
        "WORSE",
        "1",
        "11,313,152",
        "11,313,156",
        "+4",
    ]
    assert "**reference stage 1 (827e66938045)**: right, then crashed\n\n```\nrank 1 | was killed\n```" in said
    assert "## Time, not gated" in said
    assert commands.main(["compare", *paths, "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert [each["metric"] for each in value["changes"]] == ["memory: optimizer"]
    assert value["exit_code"] == 1
    assert commands.main(["compare", paths[0], paths[0]]) == 0
