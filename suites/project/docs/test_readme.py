"""Runs the commands and the code of the README as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.cli.options import parser
from zerobench.suites.project.docs.pages import block, blocks, read
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_PAGE = "README.md"


def test_engine_example(tmp_path: Path) -> None:
    """The engine's example trains, in a process of its own."""
    example = block(_PAGE, "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example + "\nprint(engine.global_steps)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_two_commands() -> None:
    """They are the two commands that the wheel's test and CI run."""
    lines = [line.split("#")[0].strip() for line in blocks(_PAGE, "")[0].text.splitlines()]
    assert lines == [
        "python -m pip install -e '.[report]' && zerobench run",
        "python -m pip install -e '.[dev]' && pytest",
    ]
    assert "pytest" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_options_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line has every option that the README names."""
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "--help"])
    flags = set(re.findall(r"`(--[a-z]+)`", read(_PAGE)))
    assert flags
    assert flags <= set(re.findall(r"--[a-z]+", capsys.readouterr().out))
