"""The output of a command whose reader ends before it, as ``head`` does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_RESULTS = str(ROOT / "reports" / "cpu-two-cores" / "results.json")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_ended(unbuffered: str) -> None:
    """The command ends without a traceback, by the exit code of a shell, which is no verdict."""
    command = [sys.executable, "-m", "zerobench", "compare", _RESULTS, _RESULTS, "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command, check=False, env=env, stdout=write, stderr=subprocess.PIPE, text=True, timeout=LIMIT
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
