"""The example of docs/reference/engine.md runs."""

from __future__ import annotations

import os
from pathlib import Path

from zerobench.suites.project.docs.pages import block
from zerobench.suites.support import forked
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_STRICT = "import warnings; warnings.simplefilter('error')\n"
_READ = """
assert weight.shape == (1, 8) and weight.any()
assert not zerobench.safe_get_full_fp32_param(model.weight).any()
"""


def test_example(tmp_path: Path) -> None:
    """It trains two steps; a parameter that was read has a value, and an edit of it persists."""
    program = block("docs/reference/engine.md", "python") + _READ
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = forked.run("-c", _STRICT + program, cwd=tmp_path, env=env, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
