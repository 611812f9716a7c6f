"""Results that are worse than a baseline, and the gate that compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerobench.cli import commands
from zerobench.results import Json
from zerobench.results.files import read
from zerobench.suites.meta.gate.given import Gate

_ENGINES = ("Same", "OneMoreGather", "OneMoreByte", "Leak", "SmallLeak")
_RUN = ("--model", "nano", "--ranks", "2", "--steps", "2", "--stages", "1")


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """The results of each engine of :mod:`.worse`, all from one run, as if each were the same subject."""
    names = ",".join(f"zerobench.suites.meta.gate.worse:{name}" for name in _ENGINES)
    directory = tmp_path_factory.mktemp("measured")
    assert commands.main(["run", "--subjects", names, *_RUN, "--out", str(directory)]) == 0
    whole = read(directory / "results.json")
    cases = {case["subject"].partition(":")[2]: case for case in whole["cases"]}
    return {name: {**whole, "cases": [_renamed(cases[name], cases["Same"])]} for name in _ENGINES}


def _renamed(case: Json, like: Json) -> Json:
    return {**case, "subject": like["subject"], "id": like["id"]}


@pytest.fixture
def gate(measured: dict[str, Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    """Gate results against the baseline of ``Same``: the exit code and the output."""
    baseline, results = tmp_path / "baseline.json", _file(tmp_path, measured["Same"])
    assert commands.main(["gate", "--baseline", str(baseline), "--results", results, "--update"]) == 0

    def run(results: Json, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = commands.main(["gate", "--baseline", str(baseline), "--results", _file(tmp_path, results), *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def _file(directory: Path, results: Json) -> str:
    path = directory / "results.json"
    path.write_text(json.dumps(results))
    return str(path)
