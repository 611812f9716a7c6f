"""The property of docs/how-to/add-a-property.md holds for the reference engine and fails for the page's mutant."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from zerobench.suites.project.docs.pages import blocks
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_PROPERTY, _MUTANT = (each.text for each in blocks("docs/how-to/add-a-property.md", "python"))


def _run(tmp_path: Path, subject: str) -> subprocess.CompletedProcess[str]:
    """Run the property on an engine, on few Scenarios."""
    (tmp_path / "test_repeats.py").write_text(_PROPERTY, encoding="utf-8")
    (tmp_path / "clock.py").write_text(_MUTANT, encoding="utf-8")
    options = ["--hypothesis-profile", "quick", "-p", "no:cacheprovider", "-p", "zerobench.suites.conftest", "-q"]
    env = {**outside(), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    tests = ["test_repeats.py", "--subject", subject, *options]
    return forked.run("-m", "pytest", *tests, cwd=tmp_path, env=env, timeout=LIMIT)


def test_property_holds(tmp_path: Path) -> None:
    """The reference engine repeats itself."""
    done = _run(tmp_path, "reference")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.rotating
def test_mutant_is_caught(tmp_path: Path) -> None:
    """The mutant does not, and the failure prints a command that runs the Scenario again."""
    done = _run(tmp_path, "clock:DependsOnTheClock")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "zerobench replay" in done.stdout
