"""``zerobench conform``: the verdicts, the table, and a run that was interrupted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from hypothesis import settings

from zerobench.cli.commands import main
from zerobench.conform import areas, matrix, page, running, verdicts
from zerobench.suites.equivalence import (
    test_client,
    test_every_engine,
    test_every_step,
    test_loads,
    test_peers,
    test_resume,
    test_resume_elsewhere,
)
from zerobench.suites.support.conformance import without_folders

_ENGINE = '''
from zerobench.subjects.plain import Plain


class Forgets(Plain):
    """Every rank trains alone: one rank is right, two are not."""

    name = "forgets"
    stages = (0,)
'''


def _record(**changes: Any) -> dict[str, Any]:
    """A property that ran in two Scenarios of stage 3 in fp32, and was refused in one of bf16."""
    cells = {"drawn": {"3/fp32": 2, "3/bf16": 1}, "refused": {"3/bf16": 1}, "set_aside": {}, "ran": {"3/fp32": 2}}
    record = {"property": "test_peers.py::test_exact_data", "claim": "Exact.", "outcome": "passed", "reason": ""}
    return record | cells | {"reasons": {"no bf16": 1}, "known": {}, "failure": None} | changes


_FAILURE = {"kind": "wrong", "message": "a | b", "scenario": {"stage": 3}, "replay": None}
_HEADER = {"subject": "torch-fsdp2", "profile": "quick", "zerobench": "0", "versions": {"torch": "2.13.0"}}


@pytest.mark.parametrize(
    ("changes", "verdict", "code"),
    [
        ({}, "pass", 0),
        ({"failure": _FAILURE, "outcome": "failed"}, "finding", 1),
        ({"known": {"fsdp2/rank-dependent-block": 1}, "set_aside": {"3/fp32": 1}}, "known finding", 0),
        ({"ran": {}, "outcome": "skipped", "reason": "no"}, "not offered", 2),
        ({"ran": {}}, "not enough", 2),
        ({"drawn": {}, "refused": {}, "ran": {}}, "pass", 0),
    ],
)
def test_verdicts(changes: dict[str, Any], verdict: str, code: int) -> None:
    """Each outcome of a property has one verdict and one exit code, and the form of the schema."""
    value = verdicts.compose([[_HEADER, _record(**changes)]])
    assert value["engines"][0]["properties"][0]["verdict"] == verdict
    assert verdicts.exit_code(value) == code
    assert verdicts.flaw(value) == ""


@pytest.mark.parametrize("profile", verdicts.LEAST)
def test_every_property_draws_enough(profile: str) -> None:
    """An engine of one stage that offers every draw has no property that was not tried often enough."""
    modules = (
        test_client,
        test_every_engine,
        test_every_step,
        test_loads,
        test_peers,
        test_resume,
        test_resume_elsewhere,
    )
    drawn = [each for module in modules for each in vars(module).values() if hasattr(each, "share")]
    parts = [part for each in drawn for part in getattr(each, "by_stage", [each])]
    examples = settings.get_profile(profile).max_examples
    assert len(parts) > 50
    assert min(max(1, round(examples * part.share)) for part in parts) >= verdicts.LEAST[profile]


def test_a_finding_is_in_its_cell_alone() -> None:
    """A failure at one stage and dtype hides no other."""
    value = verdicts.compose([[_HEADER, _record(failure=_FAILURE)]])
    cells = {(each["stage"], each["dtype"]): each["verdict"] for each in value["engines"][0]["properties"][0]["cells"]}
    assert cells == {(3, "fp32"): "finding", (3, "bf16"): "not offered"}


def test_red_and_grey_cells_link_to_their_reasons() -> None:
    """Each link of the page has its target, in both forms."""
    refused = _record(property="x::test_b", ran={}, outcome="skipped", reason="not built")
    known = _record(property="x::test_c", known={"fsdp2/rank-dependent-block": 1})
    value = verdicts.compose([[_HEADER, _record(failure=_FAILURE), refused, known]])
    other = verdicts.compose([[_HEADER | {"subject": "other"}, _record(property="x::test_b")]])
    value["engines"] += other["engines"]  # an engine that offers the property, so that the matrix has a row of it
    html, table = page.as_html(value), page.as_markdown(value)
    for anchor in ("torch-fsdp2-exact-data", "torch-fsdp2-reasons", "torch-fsdp2-known-findings"):
        assert f'href="#{anchor}"' in html
        assert f'id="{anchor}"' in html
        assert f"(#{anchor})" in table
        assert f'id="{anchor}"' in table
    assert "b: not offered: not built" in table


def test_a_row_has_the_stages_of_a_property() -> None:
    """A property with a test for each stage is one row; its cell names the stages of the findings, or adds the runs."""
    failed = _record(property="x::test_a[1]", failure=_FAILURE)
    refused = _record(property="x::test_b[0]", ran={}, outcome="skipped", reason="no stage 0")
    rest = [_record(property=f"x::test_{name}") for name in ("a[0]", "a[2]", "b[1]", "b[2]")]
    [engine] = verdicts.compose([[_HEADER, failed, refused, *rest]])["engines"]
    found = {words: cell.text for words, cell in matrix.cells(engine).items()}
    assert found == {"a": "finding at stage 1", "b": "pass 4"}
    assert json.loads(page.badge(engine))["message"] == "1 of 2 properties"
    nothing = {**engine, "properties": [each for each in engine["properties"] if each["verdict"] == "not offered"]}
    assert json.loads(page.badge(nothing))["color"] == "lightgrey"


def test_an_area_adds_its_properties() -> None:
    """Its cell has the gravest verdict, says in how many properties it fails, and counts a known finding once."""
    known = {"known": {"fsdp2/rank-dependent-block": 1}}
    steps = [_record(property="x::test_exact_steps[3]", failure=_FAILURE), _record(property="x::test_exact_data[2]")]
    reads = [_record(property=f"x::test_{name}_changes_nothing", **known) for name in ("reading", "evaluation")]
    [engine] = verdicts.compose([[_HEADER, *reads, *steps, _record(property="x::test_of_a_later_release")]])["engines"]
    assert {area: cell.text for area, cell in matrix.by_area(engine).items()} == {
        "training steps": "finding in 1 of 2",
        "readings and evaluations": "pass 4, 1 known",
        "of a later release": "pass 2",
    }
    assert "[**finding in 1 of 2**](#torch-fsdp2-exact-steps)" in page.summary({"engines": [engine]})


def test_every_property_has_an_area() -> None:
    """So the matrix of areas has no row of one property; of those that are gone, an area has what is published."""
    folder = Path(test_client.__file__).parent
    sources = "".join(file.read_text(encoding="utf-8") for file in folder.glob("test_*.py"))
    found = {name.replace("_", " ") for name in re.findall(r"^def test_(\w+)", sources, re.MULTILINE)}
    assert {words for area in areas.AREAS.values() for words in area} - found == {"seven ranks"}
    assert all(areas.area_of(words) in areas.AREAS for words in found)


def test_a_cell_and_the_badge_count_known_findings() -> None:
    """A finding of several stages counts once; a property that held beside it counts as held."""
    aside = {"known": {"fsdp2/rank-dependent-block": 1}, "set_aside": {"3/fp32": 1}}
    stages = [_record(property=f"x::test_a[{stage}]", **aside) for stage in (2, 3)]
    [engine] = verdicts.compose([[_HEADER, *stages, _record(property="x::test_b")]])["engines"]
    assert {words: cell.text for words, cell in matrix.cells(engine).items()} == {"a": "pass 4, 1 known", "b": "pass 2"}
    badge = json.loads(page.badge(engine))
    assert (badge["message"], badge["color"]) == ("2 of 2 properties, known findings: 1", "yellow")


def test_a_result_names_no_folder_of_a_machine() -> None:
    """A traceback's files, of an engine and of Python itself, are named from the search path."""
    told = f'File "{json.__file__}", line 1, and File "{page.__file__}", line 2'
    assert without_folders(told) == 'File "json/__init__.py", line 1, and File "zerobench/conform/page.py", line 2'


def test_an_engine_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong engine has a finding; the second run keeps its properties; results of several jobs merge."""
    (tmp_path / "mine.py").write_text(_ENGINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    command = ["conform", "--subjects", "mine:Forgets", "--out", "out", "--select=-k", "--select=exact_data"]
    assert main(command) == 1
    value = json.loads((tmp_path / "out" / "conformance.json").read_text(encoding="utf-8"))
    assert verdicts.flaw(value) == ""
    [found] = [each for each in value["engines"][0]["properties"] if each["finding"]]
    assert found["finding"]["replay"].startswith("zerobench replay ")
    assert found["finding"]["scenario"]["world"] >= 2 if "world" in found["finding"]["scenario"] else True
    badge = json.loads((tmp_path / "out" / "badge-mine-forgets.json").read_text(encoding="utf-8"))
    assert badge["color"] == "red"

    monkeypatch.setattr("subprocess.run", lambda command, check: CompletedProcess(command, 5))
    assert main(command) == 1, "the finished property is kept"
    assert main(["conform", "--merge", "out/conformance.json", "--out", "merged"]) == 1
    assert main(["conform", "--merge", "out/conformance.json", "out/conformance.json", "--out", "merged"]) == 3
    assert main(["conform", "--subjects", "no-such-engine"]) == 3


@pytest.mark.parametrize("code", [-9, 2, 3, 4, 1])
def test_a_run_that_did_not_end_is_no_pass(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If pytest was killed, or failed beside the properties, those that held before say nothing of the others."""
    (tmp_path / "ends.py").write_text(_ENGINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def ends(command: list[str], check: bool) -> CompletedProcess[str]:
        with (tmp_path / "out" / "shards" / "ends-forgets.quick.jsonl").open("a") as records:
            records.write(json.dumps(_record()) + "\n")
        return CompletedProcess(command, code)

    monkeypatch.setattr("zerobench.conform.running.subprocess.run", ends)
    assert main(["conform", "--subjects", "ends:Forgets", "--out", "out"]) == 2
    assert f"exit code {code}" in capsys.readouterr().err


def test_changed_code_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of an engine are those of its code: if a file of it or beside it changes, they are dropped."""
    file, shard = tmp_path / "changes.py", tmp_path / "out" / "shards" / "changes-py-forgets.quick.jsonl"
    file.write_text(_ENGINE.replace('"forgets"', '"changes"'))
    monkeypatch.setattr("zerobench.conform.running.subprocess.run", lambda *_, **__: CompletedProcess([], 5))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for edited, kept in ((file, True), (tmp_path / "beside.py", False), (file, False)):
        running.examine("changes.py:Forgets", "quick", tmp_path / "out")
        with shard.open("a") as records:
            records.write(json.dumps(_record()) + "\n")
        if not kept:
            edited.write_text(f"{edited.read_text() if edited.exists() else ''}\n# another line\n")
        found = running.examine("changes.py:Forgets", "quick", tmp_path / "out")
        assert (len(found) > 1) == kept
        assert "code" not in found[0]
