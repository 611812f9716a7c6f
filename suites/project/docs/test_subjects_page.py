"""The equivalence suite runs the example of docs/how-to/add-a-subject.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from zerobench.suites.meta import briefly
from zerobench.suites.project.docs.pages import block
from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_EXAMPLE = block("docs/how-to/add-a-subject.md", "python")


_EXACT = "suites/equivalence/test_peers.py", "-k", "exact or bound"


def _run(
    tmp_path: Path, source: str, profile: str = briefly.PROFILE, chosen: tuple[str, ...] = _EXACT
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "my_engine.py").write_text(source, encoding="utf-8")
    tests = [*chosen, "--subject", "my_engine:HandMade"]
    options = ["-p", briefly.__name__, "--hypothesis-profile", profile, "-n", "0", "-x", "-p", "no:cacheprovider", "-q"]
    env = {**outside(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    return forked.run("-m", "pytest", *tests, *options, cwd=ROOT, env=env, timeout=LIMIT)


def test_example_passes(tmp_path: Path) -> None:
    """The engine of the page passes."""
    done = _run(tmp_path, _EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* Scenarios on my_engine:HandMade", done.stdout), done.stdout


@pytest.mark.ci
def test_each_step_of_the_example(tmp_path: Path) -> None:
    """So do its single steps, readings before the first update included, when torch's optimizers have no states."""
    done = _run(tmp_path, _EXAMPLE, "quick", ("suites/equivalence/test_every_step.py",))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.rotating
def test_broken_example_fails(tmp_path: Path) -> None:
    """The same engine without the division by the leaves fails, with a Scenario and a command to run it again."""
    done = _run(tmp_path, _EXAMPLE.replace("p.grad /= self.leaves", "pass"), "quick")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "zerobench replay" in done.stdout
