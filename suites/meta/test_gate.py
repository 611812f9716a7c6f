"""The gate's own power: what is worse fails, with the right exit code, and the message says all that is needed."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zerobench import cli, options
from zerobench.errors import Unmeasured, UsageError
from zerobench.gate import grid, outcome, revisions, timing

Json = dict[str, Any]
Gate = Callable[..., tuple[int, str]]

_ENGINES = ("Same", "OneMoreGather", "OneMoreByte", "Leak", "SmallLeak")
_ROOT = Path(__file__).parents[2]
_RUN = ("--model", "nano", "--ranks", "2", "--steps", "2", "--stages", "1")


@pytest.fixture(scope="module")
def measured() -> dict[str, Json]:
    """The results of each engine of :mod:`suites.meta.worse`, all from one run, as if each were the same subject."""
    names = [f"suites.meta.worse:{name}" for name in _ENGINES]
    whole = revisions.measure(_ROOT, ("--subjects", ",".join(names), *_RUN))
    rows = {row["subject"].partition(":")[2]: row for row in whole["rows"]}
    return {name: {**whole, "rows": [_renamed(rows[name], rows["Same"])]} for name in _ENGINES}


def _renamed(row: Json, like: Json) -> Json:
    return {**row, "subject": like["subject"], "case": like["case"]}


@pytest.fixture
def gate(measured: dict[str, Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    """Gate results against the baseline that was made of ``Same``: the exit code and what was printed."""
    baseline = tmp_path / "baseline.json"
    assert (
        cli.main(["gate", "--baseline", str(baseline), "--results", _file(tmp_path, measured["Same"]), "--update"]) == 0
    )

    def run(results: Json, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.main(["gate", "--baseline", str(baseline), "--results", _file(tmp_path, results), *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def _file(directory: Path, results: Json) -> str:
    path = directory / "results.json"
    path.write_text(json.dumps(results))
    return str(path)


def test_the_same_passes(gate: Gate, measured: dict[str, Json]) -> None:
    """No finding at all."""
    assert gate(measured["Same"]) == (0, "# Gate: passed\n\n1 cases; all as in the baseline.\n")


@pytest.mark.parametrize(
    ("engine", "metric", "difference", "rule"),
    [
        ("OneMoreGather", "traffic: all_gather calls", "+1 calls on rank 0", "exact"),
        ("OneMoreGather", "traffic: all_gather sent", "+4 bytes on rank 0", "exact"),
        ("OneMoreByte", "memory: optimizer", "+1 bytes on rank 0", "exact"),
        ("Leak", "memory: working", "% of the bound on rank", "bounded"),
    ],
)
def test_worse_fails(
    gate: Gate, measured: dict[str, Json], engine: str, metric: str, difference: str, rule: str
) -> None:
    """One regression is enough, and its line names the case, both values, the difference and the rule."""
    code, said = gate(measured[engine])
    assert code == 1
    [line] = [line for line in said.splitlines() if f"| {_plain(metric)} " in line]
    level, case, _, base, head, what, by = (cell.strip() for cell in line.strip("|").split("|"))
    assert level == "regression"
    assert case.startswith("suites.meta.worse:Same stage 1, nano, fp32, N = 2, A = 1")
    assert base != head
    assert difference in what
    assert by.startswith(rule)
    assert '"stage": 1' in said
    assert "zerobench gate --baseline" in said
    assert said.rstrip("`\n").endswith("--update")


def _plain(metric: str) -> str:
    return metric.replace("_", "\\_")


def test_a_small_leak_warns(gate: Gate, measured: dict[str, Json]) -> None:
    """What is within the bound does not block, but is seen: a baseline uses just the share that does not warn."""
    code, said = gate(measured["SmallLeak"])
    assert code == 0
    assert "1 warning" in said
    assert "memory: working" in said


def test_better_is_to_be_committed(gate: Gate, measured: dict[str, Json]) -> None:
    """A byte less fails, too."""
    results = copy.deepcopy(measured["Same"])
    results["rows"][0]["memory"]["measured"][1]["gradients"] -= 1
    code, said = gate(results)
    assert code == 1
    assert "-1 bytes on rank 1: better, commit it" in said


def test_other_bits_fail_on_the_same_platform_only(gate: Gate, measured: dict[str, Json]) -> None:
    """Elsewhere they are shown as not comparable."""
    results = copy.deepcopy(measured["Same"])
    results["rows"][0]["digest"] = "0" * 64
    code, said = gate(results)
    assert (code, "1 regression" in said) == (1, True)
    results["environment"]["torch"] = "0.0"
    code, said = gate(results)
    assert (code, "not comparable" in said) == (0, True)
    assert "torch 0.0, not " in said


def test_other_owners_fail(gate: Gate, measured: dict[str, Json]) -> None:
    """Two ranks that change places hold as many bytes as before."""
    results = copy.deepcopy(measured["Same"])
    held = results["rows"][0]["held"]
    assert held[0] != held[1]
    held.reverse()
    code, said = gate(results)
    assert code == 1
    assert "held by rank 0" in said


def test_newly_failing_fails(gate: Gate, measured: dict[str, Json]) -> None:
    """A case that crashed has no numbers; it does not pass for that."""
    results = copy.deepcopy(measured["Same"])
    results["rows"][0] |= {"verdict": "crashed", "reason": "rank 1 was killed\nmore"}
    results["rows"][0] |= dict.fromkeys(("judgement", "memory", "traffic", "digest", "held", "time"))
    code, said = gate(results)
    assert code == 1
    assert "rank 1 was killed" in said
    assert "more" not in said.split("## Exact")[1].split("Scenarios:")[0]


@pytest.mark.parametrize("lost", ["memory", "traffic", "digest", "held"])
def test_what_is_no_longer_measured_is_an_error(gate: Gate, measured: dict[str, Json], lost: str) -> None:
    """A metric of the baseline that matches nothing."""
    results = copy.deepcopy(measured["Same"])
    results["rows"][0][lost] = None
    code, said = gate(results)
    assert code == 2, said
    assert "NOT ENOUGH MEASURED" in said


def test_a_dropped_case_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """An entry of the baseline that matches nothing; what is there instead is listed as new."""
    results = copy.deepcopy(measured["Same"])
    results["rows"][0]["case"] = "0123456789ab"
    code, said = gate(results)
    assert code == 1
    assert "an entry of the baseline that matches nothing" in said
    assert "new: nothing watches it" in said


def test_an_empty_result_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """Nothing measured is never a pass."""
    code, said = gate({**measured["Same"], "rows": []})
    assert code == 2
    assert "0 cases" in said
    assert "an entry of the baseline that matches nothing" in said


@pytest.mark.parametrize("engine", ["OneMoreByte", "Same"])
def test_update_makes_it_pass(gate: Gate, measured: dict[str, Json], engine: str) -> None:
    """The command that a failure prints, and nothing else, settles it."""
    code, said = gate(measured[engine], "--update")
    assert (code, "1 cases" in said) == (0, True)
    assert gate(measured[engine])[0] == 0


def test_no_baseline_is_made_of_what_is_wrong(gate: Gate, measured: dict[str, Json]) -> None:
    """Nor of nothing; both are exit code 3."""
    results = copy.deepcopy(measured["Same"])
    results["rows"][0]["judgement"]["right"] = False
    code, said = gate(results, "--update")
    assert (code, "wrong: no baseline is made of that" in said) == (3, True)
    assert gate({**measured["Same"], "rows": []}, "--update")[0] == 3


def test_json_and_summary(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """The job's page has the Markdown, standard output the JSON."""
    page = tmp_path / "page.md"
    code, said = gate(measured["OneMoreByte"], "--json", "--summary", str(page))
    value = json.loads(said)
    assert (code, value["exit_code"], value["verdict"]) == (1, 1, "failed")
    [finding] = [each for each in value["findings"] if each["metric"] == "memory: optimizer"]
    assert finding["scenario"]["stage"] == 1
    assert page.read_text().startswith("# Gate: FAILED")


def test_slower_fails(gate: Gate, measured: dict[str, Json], monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that takes 15 % more, and a case that it no longer runs, whatever the bytes; each with its Scenario."""

    def pretended(revision: str, subject: str) -> outcome.Times:
        case, other = (json.dumps([subject, {"stage": stage}]) for stage in (1, 2))
        rounds = [timing.Round({case: 1.0, other: 1.0}, {case: 1.15})] * 7
        return outcome.Times(revision, list(timing.judge(rounds)), [other], rounds)

    monkeypatch.setattr("zerobench.gate.command._times", pretended)
    code, said = gate(measured["Same"], "--time-against", "HEAD")
    assert code == 1
    assert re.search(r"\| SLOWER +\| reference stage 1, .* \| 1\.150 +\| 1\.150 to 1\.150 +\|", said)
    assert re.search(r"\| not timed +\| reference stage 2", said)
    assert '"stage": 1' in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no baseline"),
        ("{", "cannot read the baseline"),
        ("[]", "is not a baseline"),
        ('{"schema": 0}', "schema 0, expected 1"),
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
    assert cli.main(["gate", "--baseline", str(path)]) == 3
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["gate"], ["gate", "--baseline", "x", "--resluts", "y"]])
def test_a_command_line_that_cannot_be(arguments: list[str]) -> None:
    """Exit code 3, as argparse's 2 is taken."""
    assert cli.main(arguments) == 3


def test_each_revision_runs_its_own_code(tmp_path: Path) -> None:
    """An engine of someone else's, in a repository of its own: the commit's engine is what runs."""
    git = ("git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run([*git, "init", "--quiet"], check=True)
    for says in ("first", "second"):
        (tmp_path / "mine.py").write_text(
            "from zerobench.subjects.reference import Reference\n"
            f"class Mine(Reference):\n    unsupported = classmethod(lambda cls, scenario: {says!r})\n"
        )
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", says], check=True)
    arguments = ("--subjects", "mine:Mine", "--model", "nano", "--steps", "1", "--stages", "0")
    with revisions.worktree(tmp_path, "HEAD~1") as tree:
        assert revisions.measure(tree, arguments)["rows"][0]["reason"] == "first"
    assert not tree.exists()
    listed = subprocess.run([*git, "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1
    with pytest.raises(Unmeasured, match="unknown subject"):
        revisions.measure(tmp_path, ("--subjects", "mien"))


def test_the_grid_is_of_command_lines() -> None:
    """Each is one of ``zerobench run``; only what is timed leaves the judges out."""
    asked = [*grid.accounted("reference"), grid.timed("reference")]
    given = [options.parser().parse_args(["run", *arguments]) for arguments in asked]
    assert [each.times_only for each in given] == [False] * 4 + [True]


@pytest.mark.parametrize("revision", ["nowhere", "--help"])
def test_an_unknown_revision(tmp_path: Path, revision: str) -> None:
    """Is said to be one."""
    subprocess.run(["git", "-C", str(tmp_path), "init", "--quiet"], check=True)
    with pytest.raises(UsageError, match="unknown revision"):
        revisions.commit(tmp_path, revision)


def test_no_repository(tmp_path: Path) -> None:
    """Revisions are of one."""
    with pytest.raises(UsageError, match="in no git repository"):
        revisions.repository(tmp_path)
