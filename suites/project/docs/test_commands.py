"""Runs the commands of the pages as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from zerobench.cli.options import parser
from zerobench.results import schema
from zerobench.suites.project.cli import here
from zerobench.suites.project.docs.pages import PAGES, commands, read
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

#: The options of the suites that the pages name.
_OPTIONS = {"--quick", "--device", "--subject", "--slow", "--hypothesis-profile", "--benchmark-json=bench.json"}
#: Tests that the reader writes.
_WRITTEN = {"test_repeats_itself", "DependsOnTheClock"}


def _run(*arguments: str) -> str:
    env = {**outside(), "PYTHONPATH": str(ROOT)}
    done = forked.run("-m", *arguments, cwd=ROOT, env=env, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _here(line: str, *more: str) -> str:
    """The output of a ``zerobench`` command, in this process."""
    name, *arguments = shlex.split(line)
    assert name == "zerobench"
    done = here.run_zerobench(*arguments, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _command(page: str, start: str) -> str:
    """The only command of a page with this beginning."""
    [line] = [command for command in commands(page) if command.startswith(start)]
    return line


def test_replay() -> None:
    """docs/how-to/add-a-subject.md: the command that a failure prints."""
    assert "right, bit for bit" in _here(_command("docs/how-to/add-a-subject.md", "zerobench replay "))


def test_replay_of_runs_and_of_bytes() -> None:
    """docs/reference/properties.md: the commands that a failure prints about two runs and about an account."""
    lines = [line for line in commands("docs/reference/properties.md") if line.startswith("zerobench replay")]
    two_runs, account = lines
    assert _here(two_runs) == "reference: right, the same bits as the other run\n"
    assert _here(account) == "reference: right, traffic to the byte\n"


def test_doctor() -> None:
    """docs/reference/kernels.md: the doctor finds this machine usable, for people and for programs."""
    line = _command("docs/reference/kernels.md", "zerobench doctor")
    assert _here(line).endswith("usable\n")
    findings = json.loads(_here(line, "--json"))
    assert findings["problems"] == []
    assert {"devices", "compilers", "kernels", "backends", "versions"} < findings.keys()


def test_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/read-a-report.md: the command writes the files of the table; a result is no worse than itself."""
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    monkeypatch.chdir(tmp_path)
    page = "docs/how-to/read-a-report.md"
    write, compare = _command(page, "zerobench report "), _command(page, "zerobench compare ")
    _here(write)
    assert sorted(path.name for path in Path(write.split()[-1]).iterdir()) == sorted(
        re.findall(r"^\| `(\S+)` \|", read(page), re.MULTILINE)
    )
    assert "Nothing is worse." in _here(compare)


def test_a_report_rendered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """reports/README.md: a report in its place has the numbers that it had."""
    shutil.copytree(ROOT / "reports" / "cpu-two-cores", tmp_path / "reports" / "cpu-two-cores")
    monkeypatch.chdir(tmp_path)
    line = _command("reports/README.md", "zerobench report ")
    _here(line)
    written, published = (root / line.split()[-1] / "report.md" for root in (tmp_path, ROOT))
    assert _numbers(written) == _numbers(published)


def _numbers(page: Path) -> list[str]:
    return re.findall(r"\d[\d,.]*", page.read_text(encoding="utf-8"))


def test_sessions() -> None:
    """CONTRIBUTING.md: ``nox -l`` lists the sessions that the page names, each with a description."""
    listed = _run("nox", "-l")
    [names] = re.findall(r"lists the sessions: ([\w,\s]+)\.", read("CONTRIBUTING.md"))
    for name in re.split(r",\s", names):
        assert re.search(rf"^. {name} -> \w", listed, re.MULTILINE), f"{name} is not in\n{listed}"


def test_suites() -> None:
    """Each pytest command finds tests; the suites take minutes, so other tests run a part of each."""
    lines = {command for page in PAGES for command in commands(page) if command.startswith("pytest suites/")}
    folders = {"/".join(line.split()[1].split("/")[:2]) for line in lines}
    found = _run("pytest", *folders, "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider").splitlines()
    for line in lines:
        _, path, *options = shlex.split(line)
        chosen = options[options.index("-k") + 1] if "-k" in options else ""
        if chosen not in _WRITTEN:
            assert any(path in test and chosen in test for test in found), f"{line} finds no test"
        assert {each for each in options if each.startswith("--")} <= _OPTIONS


@pytest.mark.slow
def test_a_vit_that_recomputes(tmp_path: Path) -> None:
    """docs/how-to/run-benchmarks.md: a vit is right and has the traffic of its closed forms, without tokens."""
    line = _command("docs/how-to/run-benchmarks.md", "zerobench run ")
    value = json.loads(_here(line, "--json", "--out", str(tmp_path)))
    assert schema.flaw(value) == ""
    for case in value["cases"][:-1]:
        assert case["verdict"] == "right"
        assert case["scenario"]["model"] == {**case["scenario"]["model"], "kind": "vit", "recompute": "non_reentrant"}
        assert case["traffic"]["measured"] == case["traffic"]["predicted"]
        assert case["time"]["tokens_per_second"] is None
        assert case["loss"]["last"] < case["loss"]["first"]
    assert value["text"] is None


def test_cluster() -> None:
    """docs/how-to/run-on-a-cluster.md: zerobench takes the command line that each launcher starts."""
    lines = re.findall(r"-m zerobench (run [^\n`]+)", read("docs/how-to/run-on-a-cluster.md"))
    assert len(lines) == 4
    for line in lines:
        parser().parse_args(shlex.split(line))
