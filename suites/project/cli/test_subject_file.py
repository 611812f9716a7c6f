"""A subject in a file: it needs no package, and its folder is searched for what it imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerobench.suites.support import forked
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_MINE = """
from beside import STEPS
from zerobench.subjects.reference import Reference

class Mine(Reference):
    name = "mine"
"""


@pytest.mark.parametrize("whole", [False, True])
def test_subject_of_a_file(tmp_path: Path, whole: bool) -> None:
    """Each rank loads it, by a path from the working directory or a whole one."""
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "mine.py").write_text(_MINE)
    (folder / "beside.py").write_text("STEPS = 2\n")
    given = str(folder / "mine.py") if whole else "engines/mine.py"
    command = "-m", "zerobench", "replay", '{"steps": 2}', "--subject", f"{given}:Mine"
    done = forked.run(*command, cwd=tmp_path, env={**outside(), "PYTHONPATH": str(ROOT)}, timeout=forked.LIMIT)
    assert done.returncode == 0, done.stderr
    assert "engines/mine.py:Mine: right, bit for bit" in done.stdout
