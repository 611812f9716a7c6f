"""A session on real ranks: a wrong engine is killed, a right one survives, and a second session goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.suites.meta.automatic.enumeration import mutations
from zerobench.suites.meta.automatic.mutated import PRELOADED
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_UPDATE = "self.stepper.step(check, check.factors(self.config.gradient_clipping))"


def _session(folder: Path, *arguments: str) -> str:
    """In a process of its own, because this one's ranks have imported the engine."""
    options = ["--out", str(folder), "--checks", "8", *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "zerobench.suites.meta.automatic", *options],
        cwd=ROOT,
        env={**outside(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def _id(file: str, before: str, after: str) -> str:
    [found] = [each for each in mutations() if (each.file, each.before, each.after) == (file, before, after)]
    return found.id


_IMPORTS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(name for name in sys.modules if name.startswith("zerobench.engine")))
"""


def test_the_ranks_start_without_the_engine() -> None:
    """A rank that has imported the engine would run it without the mutant."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *PRELOADED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.slow
def test_a_wrong_engine_is_killed_and_a_right_one_survives(tmp_path: Path) -> None:
    """An engine that leaves the update out differs from the canonical trainer; one more bucket in flight changes
    nothing."""
    wrong, right = _id("engine.py", _UPDATE, "pass"), _id("gradients.py", "2", "3")
    said = _session(tmp_path, "--only", wrong, right)
    assert said.startswith(f"2 of {len(mutations())} mutants tried, 1 killed: ")
    lines = (tmp_path / "mutants.jsonl").read_text(encoding="utf-8").splitlines()
    ends = {each["id"]: each for each in map(json.loads, lines)}
    assert ends[wrong]["status"] == "killed"
    assert ends[wrong]["how"].startswith("differs: ")
    assert ends[right]["status"] == "survived"
    assert ends[right]["checks"] > 1
    assert _session(tmp_path, "--only", wrong) == said
    assert (tmp_path / "mutants.jsonl").read_text(encoding="utf-8").splitlines() == lines
