"""The example of docs/reference/engine.md runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from zerobench.suites.project.docs.pages import block
from zerobench.suites.support.checkout import ROOT

_READ = """
assert weight.shape == (1, 8) and weight.any()
assert not zerobench.safe_get_full_fp32_param(model.weight).any()
"""


def test_example(tmp_path: Path) -> None:
    """It trains two steps; a parameter that was read has a value, and an edit of it persists."""
    program = block("docs/reference/engine.md", "python") + _READ
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
