"""The example of docs/how-to/offload-states.md runs by its own commands, and the engine takes the configuration."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.engine.config.schema import load
from zerobench.suites.project.docs.pages import block, read
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_PAGE = "docs/how-to/offload-states.md"


@pytest.mark.parametrize(("device", "trains"), [pytest.param("cpu", False, marks=pytest.mark.slow), ("nvme", True)])
def test_example(tmp_path: Path, device: str, trains: bool) -> None:
    """Under the limit the run with states in host memory runs out of it, and the run with states in files trains."""
    [command] = re.findall(rf"^python (limited\.py {device} .*)$", read(_PAGE), re.MULTILINE)
    (tmp_path / "limited.py").write_text(block(_PAGE, "python"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *shlex.split(command)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode == 0) == trains, done.stdout + done.stderr
    assert ("trained" in done.stdout) == trains
    if not trains:
        assert "can't allocate memory" in done.stderr, done.stderr


def test_configuration() -> None:
    """The engine takes the configuration of docs/reference/offload.md."""
    section = json.loads(block("docs/reference/offload.md", "json"))
    assert load({"train_batch_size": 1, **section}).zero_optimization.offload_optimizer.device == "nvme"
