"""The gate's own power: a worse result fails with the right exit code and a complete message."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from zerobench.cli import commands, options
from zerobench.errors import Unmeasured
from zerobench.gate import grid, outcome, revisions, timing
from zerobench.gate.baseline import Baseline
from zerobench.gate.cases import common_platform, gated_cases
from zerobench.results import Json
from zerobench.results.files import read
from zerobench.scenario import Scenario
from zerobench.suites.support.checkout import ROOT
from zerobench.workload import models

Gate = Callable[..., tuple[int, str]]

_ENGINES = ("Same", "OneMoreGather", "OneMoreByte", "Leak", "SmallLeak")
_RUN = ("--model", "nano", "--ranks", "2", "--steps", "2", "--stages", "1")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """The results of each engine of :mod:`.worse`, all from one run, as if each were the same subject."""
    names, directory = (
        [f"zerobench.suites.meta.gate.worse:{name}" for name in _ENGINES],
        tmp_path_factory.mktemp("measured"),
    )
    assert commands.main(["run", "--subjects", ",".join(names), *_RUN, "--out", str(directory)]) == 0
    whole = read(directory / "results.json")
    cases = {case["subject"].partition(":")[2]: case for case in whole["cases"]}
    return {name: {**whole, "cases": [_renamed(cases[name], cases["Same"])]} for name in _ENGINES}


def _renamed(case: Json, like: Json) -> Json:
    return {**case, "subject": like["subject"], "id": like["id"]}


@pytest.fixture
def gate(measured: dict[str, Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    """Gate results against the baseline of ``Same``: the exit code and the output."""
    baseline = tmp_path / "baseline.json"
    assert (
        commands.main(["gate", "--baseline", str(baseline), "--results", _file(tmp_path, measured["Same"]), "--update"])
        == 0
    )

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


def _bare(results: Json, verdict: str, reason: str) -> Json:
    """The results of one case without numbers."""
    nothing = dict.fromkeys(("judgement", "memory", "traffic", "digest", "held", "time"))
    return {**results, "cases": [{**results["cases"][0], **nothing, "verdict": verdict, "reason": reason}]}


def test_the_same_passes(gate: Gate, measured: dict[str, Json]) -> None:
    """No finding at all."""
    assert gate(measured["Same"]) == (0, "# Gate: passed\n\n1 cases measured; all as in the baseline.\n")


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
    """One regression fails the gate, and its line names the case, both values, the difference and the rule."""
    code, said = gate(measured[engine])
    assert code == 1
    [line] = [line for line in said.splitlines() if f"| {_plain(metric)} " in line]
    level, case, _, base, head, what, by = (cell.strip() for cell in line.strip("|").split("|"))
    assert level == "regression"
    assert case.startswith("zerobench.suites.meta.gate.worse:Same stage 1, nano, fp32, N = 2, A = 1")
    assert base != head
    assert difference in what
    assert by.startswith(rule)
    assert '"stage": 1' in said
    assert "zerobench gate --baseline" in said
    assert said.rstrip("`\n").endswith("--update")


def _plain(metric: str) -> str:
    return metric.replace("_", "\\_")


def test_a_small_leak_warns(gate: Gate, measured: dict[str, Json]) -> None:
    """A value within the bound warns and does not fail; a baseline has just the share that does not warn."""
    code, said = gate(measured["SmallLeak"])
    assert code == 0
    assert "1 warning" in said
    assert "memory: working" in said


def test_better_is_to_be_committed(gate: Gate, measured: dict[str, Json]) -> None:
    """If a byte less is used, the gate fails, too."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["memory"]["measured"][1]["gradients"] -= 1
    code, said = gate(results)
    assert code == 1
    assert "-1 bytes on rank 1: better, commit it" in said


def test_other_bits_fail_on_the_same_platform_only(gate: Gate, measured: dict[str, Json]) -> None:
    """On another platform they are shown as not comparable."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["digest"] = "0" * 64
    code, said = gate(results)
    assert (code, "1 regression" in said) == (1, True)
    results["environment"]["torch"] = "0.0"
    code, said = gate(results)
    assert (code, "not comparable" in said) == (0, True)
    assert "torch 0.0, not " in said


def test_other_owners_fail(gate: Gate, measured: dict[str, Json]) -> None:
    """Two ranks that swap their states hold as many bytes as before."""
    results = copy.deepcopy(measured["Same"])
    held = results["cases"][0]["held"]
    assert held[0] != held[1]
    held.reverse()
    code, said = gate(results)
    assert code == 1
    assert "held by rank 0" in said


def test_newly_failing_fails(gate: Gate, measured: dict[str, Json]) -> None:
    """A crashed case has no numbers, and still fails."""
    code, said = gate(_bare(measured["Same"], "crashed", "rank 1 was killed\nmore"))
    assert code == 1
    assert "rank 1 was killed" in said
    assert "more" not in said.split("## Exact")[1].split("Scenarios:")[0]


@pytest.mark.parametrize("lost", ["memory", "traffic", "digest", "held"])
def test_what_is_no_longer_measured_is_an_error(gate: Gate, measured: dict[str, Json], lost: str) -> None:
    """A metric of the baseline without a match."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0][lost] = None
    code, said = gate(results)
    assert code == 2, said
    assert "NOT ENOUGH MEASURED" in said


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
    [line] = [line for line in said.splitlines() if f"| {_plain(metric)} " in line]
    assert (code, "new: commit it" in line) == (1, True)


def test_every_failing_case_says_its_scenario(gate: Gate, measured: dict[str, Json]) -> None:
    """It does so even if two short names are equal; the name has every setting that the command line has."""
    results = copy.deepcopy(measured["Same"])
    [case] = results["cases"]
    changes: list[Json] = [{"offload_optimizer": "cpu"}, {"clip": 0.5}, {"seed": 1}, {"seed": 2}]
    results["cases"] = [
        {**case, "id": str(at) * 12, "scenario": {**case["scenario"], **change}} for at, change in enumerate(changes)
    ]
    _, said = gate(results)
    for change in changes:
        assert json.dumps(change)[1:-1] in said.split("Scenarios:")[1]
    assert "A = 1, optimizer on cpu" in said
    assert "A = 1, clip 0.5" in said


def test_a_dropped_case_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """An entry of the baseline without a match; the case in its place is listed as new."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0]["id"] = "0123456789ab"
    code, said = gate(results)
    assert code == 1
    assert "an entry of the baseline that matches nothing" in said
    assert "new: nothing watches it" in said


def test_a_case_that_nobody_judged_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """It was right in the baseline; its bytes are still compared."""
    results = copy.deepcopy(measured["Same"])
    results["cases"][0] |= {"verdict": "measured", "judgement": None}
    code, said = gate(results)
    assert (code, "| right " in said, "| measured " in said) == (2, True, True)
    results["cases"][0]["memory"]["measured"][0]["optimizer"] += 1
    code, said = gate(results)
    assert (code, "+1 bytes on rank 0" in said) == (1, True)


def test_a_baseline_of_schema_1(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """Its name for a verdict was state: the gate reads it, and writes the names of today."""
    path = tmp_path / "baseline.json"
    text = path.read_text()
    path.write_text(text.replace('"schema": 3,', '"schema": 1,').replace('"verdict":', '"state":'))
    assert gate(measured["Same"])[0] == 0
    Baseline.read(path).write(path)
    assert path.read_text() == text


def test_an_empty_result_is_an_error(gate: Gate, measured: dict[str, Json]) -> None:
    """A result without measurements never passes."""
    code, said = gate({**measured["Same"], "cases": []})
    assert code == 2
    assert "0 cases" in said
    assert "an entry of the baseline that matches nothing" in said


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
    code, said = gate(_bare(measured["Same"], "unsupported", "SGD only"), "--update")
    assert (code, "nothing was measured" in said, "SGD only" in said) == (3, True, True)


def test_what_has_no_numbers_is_not_measured(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """If an unsupported case is unsupported in the baseline, too, it is right; alone it passes no gate."""
    path = tmp_path / "baseline.json"
    baseline = json.loads(path.read_text())
    for case in baseline["cases"].values():
        case.update(verdict="unsupported", exact={}, bounded={}, digests={})
    path.write_text(json.dumps(baseline))
    code, said = gate(_bare(measured["Same"], "unsupported", "SGD only"))
    assert (code, "0 cases measured" in said) == (2, True)


def test_results_of_two_platforms(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """They have no bits in common for a gate."""
    other = copy.deepcopy(measured["Same"])
    other["cases"][0]["id"] = "0123456789ab"
    other["environment"]["torch"] = "0.0"
    (tmp_path / "other.json").write_text(json.dumps(other))
    code, said = gate(measured["Same"], "--results", str(tmp_path / "results.json"), str(tmp_path / "other.json"))
    assert code == 3
    assert "different platforms: torch is" in said


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


def test_a_summary_that_fails_at_the_end(gate: Gate, measured: dict[str, Json], tmp_path: Path) -> None:
    """Folders are made. If the disk is full, the outcome was printed, and the exit code is no regression's."""
    page = tmp_path / "missing" / "page.md"
    assert gate(measured["Same"], "--summary", str(page))[0] == 0
    assert page.read_text().startswith("# Gate: passed")
    page.unlink()
    page.symlink_to("/dev/full")
    code, said = gate(measured["Same"], "--summary", str(page))
    assert (code, "No space left on device" in said, "# Gate: passed" in said) == (3, True, True)


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


@pytest.mark.parametrize("arguments", [["gate"], ["gate", "--baseline", "x", "--resluts", "y"]])
def test_a_command_line_that_cannot_be(arguments: list[str]) -> None:
    """Exit code 3, as argparse's 2 is taken."""
    assert commands.main(arguments) == 3


def test_the_grid_is_of_command_lines() -> None:
    """Each is one of ``zerobench run``; only timed runs leave the judges out."""
    asked = [*grid.accounted("reference"), grid.timed("reference")]
    given = [options.parser().parse_args(["run", *arguments]) for arguments in asked]
    assert [each.times_only for each in given] == [False] * 5 + [True]


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
