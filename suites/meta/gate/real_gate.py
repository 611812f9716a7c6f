"""The gate put to the test for real, in minutes: run by ``nox -s gate``, or when it is named, never by default.

A clone of this repository's last commit is gated by its own command line, against itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.suites.support.checkout import ROOT

#: Appended to the reference subject: every call takes 15 % longer than it did.
SLOWER = """
import time


def _slower(method):
    def wrapped(self, *args):
        begin = time.perf_counter()
        result = method(self, *args)
        now = time.perf_counter()
        until = now + 0.15 * (now - begin)
        while time.perf_counter() < until:
            pass
        return result

    return wrapped


Reference.micro_step, Reference.step = _slower(Reference.micro_step), _slower(Reference.step)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The last commit, with a baseline and results of one run."""
    return cloned(tmp_path / "tree")


def cloned(tree: Path) -> Path:
    """The last commit in a folder of its own, with a baseline and results of one run."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    assert _zerobench(tree, "run", "--model", "nano", "--steps", "1", "--stages", "0", "--out", "r").returncode == 0
    assert run_gate(tree, "--update").returncode == 0
    return tree


def run_gate(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``zerobench gate`` on the clone's results."""
    return _zerobench(tree, "gate", "--baseline", "b.json", "--results", "r/results.json", *options)


def _zerobench(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-m", "zerobench", *arguments], {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=3600, check=False)


def test_the_same_code_is_not_slower(clone: Path) -> None:
    """A/A: base and head are one commit."""
    done = run_gate(clone, "--time-against", "HEAD")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| SLOWER" not in done.stdout


def test_a_slowdown_of_15_percent_fails(clone: Path) -> None:
    """The head waits, in every call, for 15 % of the time that the call took."""
    with (clone / "zerobench" / "subjects" / "reference.py").open("a", encoding="utf-8") as source:
        source.write(SLOWER)
    done = run_gate(clone, "--time-against", "HEAD")
    print(done.stdout)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "| SLOWER" in done.stdout
