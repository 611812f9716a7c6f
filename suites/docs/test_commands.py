"""The commands of the pages are run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from zerobench.options import parser

ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_replay() -> None:
    """docs/subjects.md: the command that a failure prints."""
    [line] = re.findall(
        r"^zerobench replay .*$", (ROOT / "docs" / "subjects.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert "right, bit for bit" in _run(*shlex.split(line))


def test_sessions() -> None:
    """CONTRIBUTING.md: ``nox -l`` lists the sessions that the page names, each with a description."""
    listed = _run("nox", "-l")
    [names] = re.findall(r"lists the sessions: ([\w, ]+)\.", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    for name in names.split(", "):
        assert re.search(rf"^. {name} -> \w", listed, re.MULTILINE), f"{name} is not in\n{listed}"


def test_bench(tmp_path: Path) -> None:
    """docs/bench.md: the run of a vision transformer, and the quick collectives; the suites' options exist."""
    page = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^zerobench run .*$", page, re.MULTILINE)
    assert "vit-tiny" in _run(*shlex.split(line), "--out", str(tmp_path))
    commands = [line.split("#")[0] for line in re.findall(r"^pytest suites/bench.*$", page, re.MULTILINE)]
    for command in commands:
        words = [word for word in shlex.split(command) if not word.startswith("--benchmark-json")]
        _run(*words, "--collect-only", "-q", "-p", "no:cacheprovider")
    assert "passed" in _run(*shlex.split(commands[-1]), "-p", "no:cacheprovider")


def test_cluster() -> None:
    """docs/cluster.md: what is launched is a command line that zerobench takes."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    lines = re.findall(r"-m zerobench (run [^\n`]+)", page)
    assert len(lines) == 4
    for line in lines:
        parser().parse_args(shlex.split(line))
