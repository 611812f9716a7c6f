"""Start-up: a command loads what it needs and no more, as a fresh process sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.suites.project.reports import sample
from zerobench.suites.support.checkout import ROOT

#: Runs a command line of zerobench, or only imports it, and prints the packages that are loaded then and not before.
_PROGRAM = """
import contextlib, io, json, sys
before = set(sys.modules)
import zerobench
if sys.argv[1:]:
    from zerobench.cli.commands import main
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            assert main(sys.argv[1:]) == 0
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
print(json.dumps([sorted(loaded), "zerobench.engine" in sys.modules]))
"""


def _loaded(directory: Path, *arguments: str) -> tuple[set[str], bool]:
    """The packages besides Python's own that a process loads, and whether it loads the engine."""
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    packages, engine = json.loads(done.stdout)
    return set(packages), engine


@pytest.fixture
def results(tmp_path: Path) -> str:
    """A file of results."""
    path = tmp_path / "results.json"
    path.write_text(json.dumps(sample.results()), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["run", "--help"]])
def test_nothing_is_loaded_before_it_is_needed(arguments: list[str], tmp_path: Path) -> None:
    """``import zerobench`` and the command line's help load nothing but zerobench, and no engine."""
    assert _loaded(tmp_path, *arguments) == ({"zerobench"}, False)


def test_results_are_read_without_torch_or_engine(results: str, tmp_path: Path) -> None:
    """To compare takes no pandas either; the report is what draws and counts."""
    packages, engine = _loaded(tmp_path, "compare", results, results)
    assert not engine
    assert not packages & {"torch", "numpy", "pandas", "matplotlib"}
    packages, engine = _loaded(tmp_path, "report", results, "--out", str(tmp_path / "out"))
    assert not engine
    assert "torch" not in packages
    assert {"pandas", "matplotlib"} <= packages
