"""The commands of the pages are run as they stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from zerobench.cli.options import parser
from zerobench.results import schema
from zerobench.suites.project.cli import here
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT


def _run(*arguments: str) -> str:
    env = {**outside(), "PYTHONPATH": str(ROOT)}
    done = forked.run("-m", *arguments, cwd=ROOT, env=env, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _here(line: str, *more: str) -> str:
    """What a ``zerobench`` command prints, in this process."""
    name, *arguments = shlex.split(line)
    assert name == "zerobench"
    done = here.zerobench(*arguments, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_replay() -> None:
    """docs/subjects.md: the command that a failure prints."""
    [line] = re.findall(
        r"^zerobench replay .*$", (ROOT / "docs" / "subjects.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert "right, bit for bit" in _here(line)


def test_doctor() -> None:
    """docs/kernels.md: the doctor finds this machine usable, for people and for machines."""
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^zerobench doctor.*$", page, re.MULTILINE)
    assert _here(line).endswith("usable\n")
    findings = json.loads(_here(line, "--json"))
    assert findings["problems"] == []
    assert {"devices", "compilers", "kernels", "backends", "versions"} < findings.keys()


def test_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reports.md: what it says how to write is written, and a result compared with itself is no worse."""
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    write, compare = re.findall(r"^zerobench .*$", page, re.MULTILINE)
    _here(write)
    assert sorted(path.name for path in Path(write.split()[-1]).iterdir()) == sorted(
        re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE)
    )
    assert "Nothing is worse." in _here(compare)


def test_sessions() -> None:
    """CONTRIBUTING.md: ``nox -l`` lists the sessions that the page names, each with a description."""
    listed = _run("nox", "-l")
    [names] = re.findall(r"lists the sessions: ([\w, ]+)\.", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    for name in names.split(", "):
        assert re.search(rf"^. {name} -> \w", listed, re.MULTILINE), f"{name} is not in\n{listed}"


def test_bench() -> None:
    """docs/bench.md, docs/kernels.md: the suites, which take minutes, are found."""
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("bench.md", "kernels.md"))
    commands = re.findall(r"^pytest (suites/bench\S*)([^#\n]*)", pages, re.MULTILINE)
    found = _run("pytest", "suites/bench", "--quick", "--collect-only", "-q", "-p", "no:cacheprovider")
    for path, options in commands:
        assert path in found
        assert set(re.findall(r"--[\w-]+", options)) <= {"--quick", "--device", "--benchmark-json"}


def test_a_vit_that_recomputes(tmp_path: Path) -> None:
    """docs/bench.md: its gathers and what is saved follow from its structure as a gpt's do; its rows know no tokens."""
    page = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^zerobench run .*$", page, re.MULTILINE)
    value = json.loads(_here(line, "--json", "--out", str(tmp_path)))
    assert schema.flaw(value) == ""
    for row in value["rows"][:-1]:
        assert row["judgement"]["right"]
        assert row["scenario"]["model"] == {**row["scenario"]["model"], "kind": "vit", "recompute": "non_reentrant"}
        assert row["traffic"]["measured"] == row["traffic"]["predicted"]
        assert row["time"]["tokens_per_second"] is None
        assert row["loss"]["last"] < row["loss"]["first"]
    assert value["text"] is None


def test_cluster() -> None:
    """docs/cluster.md: what is launched is a command line that zerobench takes."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    lines = re.findall(r"-m zerobench (run [^\n`]+)", page)
    assert len(lines) == 4
    for line in lines:
        parser().parse_args(shlex.split(line))
