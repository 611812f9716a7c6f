"""The command line: the user's input and its results."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import zerobench
from zerobench import report
from zerobench.bench.document import make_document
from zerobench.cli import commands
from zerobench.cli import run as run_command
from zerobench.errors import UsageError
from zerobench.results import Json, schema
from zerobench.suites.project.cli import here
from zerobench.suites.project.reports.page import markdown_tables, received
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT
from zerobench.workload.data import text

_STAGES = [("reference", stage) for stage in range(4)]

Done = tuple[Path, subprocess.CompletedProcess[str]]


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``zerobench`` in a process of its own."""
    command = [sys.executable, "-m", "zerobench", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=False, cwd=directory, env=env, capture_output=True, text=True, timeout=LIMIT)


def run_here(directory: Path, *arguments: str) -> Done:
    """``zerobench run`` of a small model in this process: the report's directory and the exit code."""
    return directory, here.run_zerobench("run", "--model", "nano", *arguments, "--out", str(directory))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The main job, small: its report's directory and exit code."""
    directory = tmp_path_factory.mktemp("clean")
    done = here.run_zerobench("run", "--model", "nano", "--steps", "4", "--json", cwd=directory)
    return directory / "zerobench-report", done


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run with subjects that fail, in a precision in which torch's subjects have other bits."""
    subjects = [
        f"zerobench.suites.project.cli.broken:{name}" for name in ("Raises", "Dies", "Stale", "Unreduced", "Shards")
    ]
    names = ",".join(["reference", "torch-ddp", *subjects])
    chosen = "--steps", "2", "--dtype", "bf16", "--stages", "2", "--subjects", names
    return run_here(tmp_path_factory.mktemp("broken"), *chosen)


def results(directory: Path) -> Json:
    """The results that a run wrote."""
    value: Json = json.loads((directory / "results.json").read_text())
    return value


def tables(directory: Path) -> dict[str, list[dict[str, str]]]:
    """The report's tables by title: a list of rows by column, without the mark of the better direction."""
    found = markdown_tables((directory / "report.md").read_text(encoding="utf-8"))
    names = {
        title: [name.rstrip(" \N{DOWNWARDS ARROW}\N{UPWARDS ARROW}") for name in rows[0]]
        for title, rows in found.items()
    }
    return {title: [dict(zip(names[title], row, strict=True)) for row in rows[1:]] for title, rows in found.items()}


def test_main_job_is_right(clean: Done) -> None:
    """The reference engine has the canonical trainer's bits at every stage, the peers are right, the exit code is 0."""
    directory, done = clean
    assert done.returncode == 0, done.stderr
    cases = results(directory)["cases"]
    assert [(case["subject"], case["stage"]) for case in cases] == [
        *_STAGES, ("torch-ddp", 0), ("torch-fsdp2", 3), ("compute-only", None)
    ]  # fmt: skip
    assert [case["verdict"] for case in cases] == ["right"] * 6 + ["measured"]
    assert all(case["judgement"]["bitwise"] for case in cases if case["subject"] == "reference")
    assert all(case["loss"]["last"] < case["loss"]["first"] for case in cases)


def test_measured_bytes_are_those_predicted(clean: Done) -> None:
    """Every rank of every subject holds and moves the bytes of the closed forms (suites/accounting has all of them)."""
    for case in results(clean[0])["cases"][:-1]:
        for measured, predicted in zip(case["memory"]["measured"], case["memory"]["predicted"], strict=True):
            assert all(measured[state] == predicted[state] for state in ("parameters", "gradients", "optimizer"))
        if case["stage"] < 3:
            assert case["traffic"]["measured"] == case["traffic"]["predicted"]


def test_what_was_received_crossed_the_wire(clean: Done) -> None:
    """Each case has the kernel's count, which is at least the meters' count over all ranks."""
    for case in results(clean[0])["cases"][:-1]:
        traffic = case["traffic"]
        if traffic["wire"] is None:
            pytest.skip("the kernel has no counter of loopback")
        assert traffic["wire"] >= received(traffic) > 0


def test_quiet_where_standard_error_is_no_terminal(clean: Done) -> None:
    """It prints the report's path and nothing else."""
    out = Path("zerobench-report")
    names = f"{out / 'report.md'}, {out / 'report.html'} and {out / 'results.json'}"
    assert clean[1].stderr == f"zerobench: wrote {names}\n"


def test_json_on_standard_output_is_what_was_written(clean: Done) -> None:
    """--json prints the results and nothing else."""
    assert json.loads(clean[1].stdout) == results(clean[0])


def test_nothing_else_is_written(clean: Done) -> None:
    """Three files, no temporary one."""
    assert sorted(path.name for path in clean[0].iterdir()) == ["report.html", "report.md", "results.json"]


def test_results_fit_their_schema(clean: Done, broken: Done) -> None:
    """The results of failed subjects fit, too."""
    for directory, _ in (clean, broken):
        assert schema.flaw(results(directory)) == ""


def test_one_digest_for_all_stages(clean: Done) -> None:
    """Without accumulation all stages train the same bits; a digest needs promised bits; ids differ."""
    cases = results(clean[0])["cases"]
    assert len({case["digest"] for case in cases[:4]}) == 1
    assert [case["digest"] is None for case in cases] == [False] * 4 + [True] * 3
    assert len({case["id"] for case in cases}) == len(cases)


def test_cases_of_several_runs_make_one_document(clean: Done, tmp_path: Path) -> None:
    """Common values stay in the settings; a setting that differs is null there."""
    value = results(clean[0])
    other = [case | {"scenario": case["scenario"] | {"dtype": "bf16"}, "model": "mini"} for case in value["cases"]]
    both = make_document([*value["cases"], *other], "zerobench", value["environment"])
    assert schema.flaw(both) == ""
    differing = {name for name in both["settings"] if both["settings"][name] != value["settings"][name]}
    assert differing == {"dtype", "model"}
    assert both["settings"]["dtype"] is None
    names, *rows = markdown_tables(report.write(tmp_path, both))["Right?"]
    assert {row[names.index("dtype")] for row in rows} == {"fp32", "bf16"}


def test_the_schema_refuses(clean: Done) -> None:
    """A value of another type, a missing value and an unknown value."""
    value = results(clean[0])
    case = value["cases"][0]
    for wrong in (case | {"stage": 4}, case | {"verdict": None}, case | {"more": 1}, {"subject": "reference"}):
        assert schema.flaw(value | {"cases": [wrong]}).startswith("$.cases[0]")


def test_report_shows_the_numbers_of_the_results(clean: Done) -> None:
    """Bytes are exact; suites/project/reports checks the other numbers, on made-up results."""
    found = tables(clean[0])
    judged = [case for case in results(clean[0])["cases"] if case["memory"]]
    for cells, case in zip(found["Memory on each rank, in bytes"], judged, strict=True):
        for category in ("parameters", "gradients", "optimizer", "peak"):
            assert _number(cells[category]) == max(rank[category] for rank in case["memory"]["measured"])
    totals = [cells for cells in found["Traffic of a step, in bytes"] if cells["collective"] == "total"]
    for cells, case in zip(totals, judged, strict=True):
        ledgers = case["traffic"]["measured"]
        assert _number(cells["sent"]) == max(sum(each["sent"] for each in ledger.values()) for ledger in ledgers)


def _number(cell: str) -> int:
    return int(cell.rstrip(" =").replace(",", ""))


def test_report_says_how_it_was_made(clean: Done) -> None:
    """It shows the text's digest, and at the end the command."""
    written = (clean[0] / "report.md").read_text()
    assert hashlib.sha256(text("")).hexdigest() in written
    assert written.endswith("```\nzerobench run --model nano --steps 4 --json\n```\n")
    assert results(clean[0])["command"] == "zerobench run --model nano --steps 4 --json"


def test_times_only(tmp_path: Path) -> None:
    """The run neither judges nor meters, and the report says so; that is no failure.

    Three steps are a Scenario's default, which the results do not repeat.
    """
    _, done = run_here(tmp_path, "--subjects", "reference", "--stages", "3", "--steps", "3", "--times-only")
    assert done.returncode == 0, done.stderr
    of_stage_3, alone = results(tmp_path)["cases"]
    assert (of_stage_3["verdict"], alone["verdict"]) == ("measured", "measured")
    assert of_stage_3["judgement"] is of_stage_3["memory"] is of_stage_3["traffic"] is of_stage_3["digest"] is None
    assert of_stage_3["time"]["ratio"] > 0
    assert of_stage_3["time"]["run_ahead"] > 0
    assert alone["time"]["ratio"] == 1
    assert "no case was judged" in done.stdout
    assert [row["right?"] for row in tables(tmp_path)["Right?"]] == ["not judged"]


def test_unjudged(tmp_path: Path) -> None:
    """The run meters, and makes no digest, which needs as long as an oracle."""
    _, done = run_here(tmp_path, "--subjects", "reference", "--stages", "3", "--steps", "3", "--unjudged")
    assert done.returncode == 0, done.stderr
    of_stage_3, _ = results(tmp_path)["cases"]
    assert of_stage_3["judgement"] is of_stage_3["digest"] is of_stage_3["held"] is None
    assert of_stage_3["memory"]
    assert of_stage_3["traffic"]


def test_results_are_kept_after_training(
    clean: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the process ends while it meters, the times remain."""
    value = results(clean[0])

    def measured(*_: object) -> Iterator[Json]:
        yield value
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "open_pool", lambda *_: nullcontext())
    monkeypatch.setattr(run_command, "_measure", measured)
    assert commands.main(["run", "--out", str(tmp_path)]) != 0
    assert results(tmp_path) == value


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has scheduling policies to choose from")
def test_ranks_compute_in_batches(clean: Done) -> None:
    """A message does not take the core from its sender (docs/notes/speed.md), and the results say so."""
    assert results(clean[0])["environment"]["scheduling"] == "batch"


def test_subjects_that_fail_are_told_and_the_others_go_on(broken: Done) -> None:
    """Each has its own verdict and reason; the exit code is 1."""
    directory, done = broken
    assert done.returncode == 1, done.stderr
    raises, dies, stale, unreduced, shards = results(directory)["cases"][2:7]
    assert raises["verdict"] == "raised"
    assert "the flux is not aligned" in raises["reason"]
    assert dies["verdict"] == "crashed"
    assert dies["reason"].startswith("rank 1 was killed by SIGKILL")
    assert stale["verdict"] == "wrong"
    assert "only rank 1 of 2 differs" in stale["judgement"]["message"]
    assert unreduced["verdict"] == "raised"
    assert "returned a loss of shape [2]; expected a 0-dimensional tensor" in unreduced["reason"]
    assert shards["verdict"] == "wrong"
    assert "got       torch.float32 [6144]\n  expected  torch.float32 [256, 48]" in shards["judgement"]["message"]
    shown = [row["right?"] for row in tables(directory)["Right?"]]
    assert shown == ["bitwise", "within budget", "raised", "crashed", "WRONG", "raised", "WRONG"]
    assert "the flux is not aligned" in done.stdout


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """One line."""
    with pytest.raises(SystemExit) as end:
        commands.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"zerobench {zerobench.__version__}\n"


def test_bad_input_ends_the_process_with_code_2() -> None:
    """A shell sees the same code."""
    done = run(ROOT, "run", "--model", "huge")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("zerobench: unknown model 'huge'")


@pytest.mark.parametrize("full", ["results.json", "report.html"])
def test_a_full_disk(clean: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """No partial file or report is left, and an earlier report stays as it was; the results are written first."""
    value = results(clean[0])
    report.write(tmp_path, value)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write = Path.write_text

    def fails(path: Path, *args: Any, **kwargs: Any) -> int:
        if full in path.name:
            raise OSError(28, "No space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(UsageError, match="No space left on device"):
        report.write(tmp_path, value | {"command": "another"})
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"results.json"} - {full}
    assert before.keys() == after.keys()


def test_what_cannot_be_written_is_printed(
    clean: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the report cannot be written in the end, the run prints its results."""
    value = results(clean[0])

    def measured(*_: object) -> list[Json]:
        (tmp_path / "r").touch()
        return [value]

    monkeypatch.setattr(run_command, "open_pool", lambda *_: nullcontext())
    monkeypatch.setattr(run_command, "_measure", measured)
    assert commands.main(["run", "--out", str(tmp_path / "r")]) == 2
    output = capsys.readouterr()
    assert json.loads(output.out) == value
    assert "is not a directory" in output.err


def test_progress_is_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress overwrites this line, and clears it at the end."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = run_command._Progress()
    progress("round 1 of 2")
    progress.close()
    assert isinstance(sys.stderr, Terminal)
    assert sys.stderr.getvalue() == "\r\x1b[Kround 1 of 2\r\x1b[K"


@pytest.mark.slow
def test_offload(tmp_path: Path) -> None:
    """Offloaded cases are right; the bytes kept and moved off the device are those of the closed forms."""
    chosen = "--steps", "2", "--subjects", "reference", "--stages", "0,3", "--offload", "none,cpu,nvme"
    _, done = run_here(tmp_path, *chosen, "--nvme-path", str(tmp_path))
    assert done.returncode == 0, done.stderr
    shown = tables(tmp_path)
    assert [(row["stage"], row["offload optimizer"], row["right?"]) for row in shown["Right?"]] == [
        ("0", "none", "bitwise"),
        ("3", "none", "bitwise"),
        ("3", "cpu", "bitwise"),
        ("3", "nvme", "bitwise"),
    ]
    off = shown["Offload in a step, in bytes"]
    assert [row["offload"] for row in off] == ["optimizer cpu, parameters cpu", "optimizer nvme, parameters nvme"]
    assert all(row[moved].endswith(" =") for row in off for moved in ("to host", "to device", "read", "written"))
    assert "Device and host are one memory on this machine" in (tmp_path / "report.md").read_text()
    value = results(tmp_path)
    assert schema.flaw(value) == ""
