"""The example of docs/offload.md is run by its own commands, as it stands there."""

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
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT

_PAGE = (ROOT / "docs" / "offload.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("device", "trains"), [("cpu", False), ("nvme", True)])
def test_example(tmp_path: Path, device: str, trains: bool) -> None:
    """Under the limit the run with its states in host memory gets none, and the run with its states in files trains."""
    [program] = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)
    [command] = re.findall(rf"^python (limited\.py {device} .*)$", _PAGE, re.MULTILINE)
    (tmp_path / "limited.py").write_text(program, encoding="utf-8")
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
    """The configuration of the page is one that the engine takes."""
    [text] = re.findall(r"```json\n(.*?)```", _PAGE, re.DOTALL)
    assert load({"train_batch_size": 1, **json.loads(text)}).zero_optimization.offload_optimizer.device == "nvme"
