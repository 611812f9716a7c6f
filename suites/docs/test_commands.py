"""The commands of the pages are run as they stand there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

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


def test_doctor() -> None:
    """docs/kernels.md: the doctor finds this machine usable, for people and for machines."""
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^zerobench doctor.*$", page, re.MULTILINE)
    assert _run(*shlex.split(line)).endswith("usable\n")
    findings = json.loads(_run(*shlex.split(line), "--json"))
    assert findings["problems"] == []
    assert {"devices", "compilers", "kernels", "backends", "versions"} < findings.keys()


def test_bench_of_the_kernels_is_found() -> None:
    """docs/kernels.md: the command collects the benchmarks; running them takes minutes."""
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^pytest .*bench.*$", page, re.MULTILINE)
    assert "test_adam_step[64M]" in _run(*shlex.split(line), "--collect-only", "-q")


def test_sessions() -> None:
    """CONTRIBUTING.md: ``nox -l`` lists the sessions that the page names, each with a description."""
    listed = _run("nox", "-l")
    [names] = re.findall(r"lists the sessions: ([\w, ]+)\.", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    for name in names.split(", "):
        assert re.search(rf"^. {name} -> \w", listed, re.MULTILINE), f"{name} is not in\n{listed}"
