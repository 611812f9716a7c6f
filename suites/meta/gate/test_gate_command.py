"""The command: its output, exit codes and files, and a working tree that is slower."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from zerobench.cli import commands, options
from zerobench.errors import Unmeasured
from zerobench.gate import grid, outcome, revisions, timing
from zerobench.results import Json
from zerobench.suites.meta.gate.given import Gate


def test_json_and_summary(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """The job's page has the Markdown, standard output the JSON."""
    page = tmp_path / "page.md"
    code, said = gate(measured["OneMoreByte"], "--json", "--summary", str(page))
    value = json.loads(said)
    assert (code, value["exit_code"], value["outcome"]) == (1, 1, "failed")
    [finding] = [each for each in value["findings"] if each["metric"] == "memory: optimizer"]
    assert finding["scenario"]["stage"] == 1
    assert page.read_text().startswith("# Gate: FAILED")


def test_slower_fails(gate: Gate, measured: dict[str, Json], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the head takes 15 % more, or lacks a case, the gate fails, whatever the bytes; each line has its Scenario."""

    def pretended(revision: str, subject: str) -> outcome.Times:
        case, other = (json.dumps([subject, {"stage": stage}]) for stage in (1, 2))
        rounds = [timing.Round({case: 1.0, other: 1.0}, {case: 1.15})] * 7
        return outcome.Times(revision, list(timing.time_verdicts(rounds)), [other], rounds)

    monkeypatch.setattr("zerobench.gate.command._times", pretended)
    code, said = gate(measured["Same"], "--time-against", "HEAD")
    assert code == 1
    assert re.search(r"\| SLOWER +\| reference stage 1, .* \| 1\.150 +\| 1\.150 to 1\.150 +\|", said)
    assert re.search(r"\| not timed +\| reference stage 2", said)
    assert '"stage": 1' in said


@pytest.mark.parametrize(("loss", "code"), [(3.0, 0), (3.01, 0), (5.2, 2), (None, 2)])
def test_a_step_that_trains_less_is_not_timed(
    gate: Gate, measured: dict[str, Json], monkeypatch: pytest.MonkeyPatch, loss: float | None, code: int
) -> None:
    """A head that is faster and ends at another loss, or at none, has no time to compare."""

    def measure(tree: Path, arguments: tuple[str, ...]) -> Json:
        case = copy.deepcopy(measured["Same"]["cases"][0])
        head = tree == revisions.repository(Path.cwd())
        case["time"]["ratio"], case["loss"]["last"] = (0.5, loss) if head else (1.0, 3.0)
        return {"cases": [case]}

    monkeypatch.setattr(revisions, "measure", measure)
    monkeypatch.setattr(revisions, "demand_own", lambda *_: None)
    found, said = gate(measured["Same"], "--time-against", "HEAD")
    assert found == code
    assert ("FASTER" in said) == (code == 0)


@pytest.mark.parametrize(("engine", "code"), [("OneMoreByte", 1), ("Same", 2)])
def test_a_base_that_cannot_be_timed_hides_nothing(
    gate: Gate, measured: dict[str, Json], monkeypatch: pytest.MonkeyPatch, engine: str, code: int
) -> None:
    """The gate prints the findings, and the reason for the missing times."""

    def fails(revision: str, subject: str) -> outcome.Times:
        raise Unmeasured("the base knows no --times-only")

    monkeypatch.setattr("zerobench.gate.command._times", fails)
    found, said = gate(measured[engine], "--time-against", "HEAD")
    assert (found, "the base knows no --times-only" in said) == (code, True)
    assert ("memory: optimizer" in said) == (engine == "OneMoreByte")


def test_what_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The baseline and the summary; exit code 3."""
    monkeypatch.setattr(revisions, "measure", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "below")
    for asked in (["--baseline", below, "--update"], ["--baseline", "b.json", "--summary", below]):
        assert commands.main(["gate", *asked]) == 3
        assert capsys.readouterr().err.startswith("zerobench: cannot write ")


def test_an_unknown_subject(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the gate and of the comparison of revisions: exit code 3, before anything is measured."""
    monkeypatch.setattr(revisions, "measure", lambda *_: pytest.fail("it was measured"))
    for asked in (["gate", "--baseline", "b.json"], ["compare", "HEAD", "HEAD"]):
        assert commands.main([*asked, "--subject", "torch-dpd"]) == 3
        assert "unknown subject 'torch-dpd'; did you mean 'torch-ddp'?" in capsys.readouterr().err


def test_a_summary_that_fails_at_the_end(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """Folders are made. If the disk is full, the outcome was printed, and the exit code is no regression's."""
    page = tmp_path / "missing" / "page.md"
    assert gate(measured["Same"], "--summary", str(page))[0] == 0
    assert page.read_text().startswith("# Gate: passed")
    page.unlink()
    page.symlink_to("/dev/full")
    code, said = gate(measured["Same"], "--summary", str(page))
    assert (code, "No space left on device" in said, "# Gate: passed" in said) == (3, True, True)


@pytest.mark.parametrize("arguments", [["gate"], ["gate", "--baseline", "x", "--resluts", "y"]])
def test_a_command_line_that_cannot_be(arguments: list[str]) -> None:
    """Exit code 3, as argparse's 2 is taken."""
    assert commands.main(arguments) == 3


def test_the_grid_is_of_command_lines() -> None:
    """Each is one of ``zerobench run``; only timed runs leave the judges out."""
    asked = [*grid.accounted("reference"), grid.timed("reference")]
    given = [options.parser().parse_args(["run", *arguments]) for arguments in asked]
    assert [each.times_only for each in given] == [False] * 5 + [True]
