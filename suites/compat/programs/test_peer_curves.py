"""The loss curves of both jobs beside those of the installed DeepSpeed."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from zerobench.suites.compat.programs.jobs import SCRIPTS, Job, finished, logged, offline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(offline(), reason="needs the extra hf: pip install 'zerobench[hf]'"),
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'zerobench[deepspeed]'"),
]
#: Of a loss, relative; the two engines add gradients in other orders.
_TOLERANCE = 3e-6


def _losses(out: Path) -> list[float]:
    return [entry["loss"] for entry in logged(out) if "loss" in entry]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", SCRIPTS)
def test_losses(name: str, stage: int, tmp_path: Path, record_property: Any) -> None:
    """Each step's loss is that of DeepSpeed at the same stage within 3e-6."""
    finished(Job(name, stage, offloads=False).run(tmp_path / "zerobench"))
    with suppress(subprocess.TimeoutExpired):  # DeepSpeed's ranks may not end after their last line
        Job(name, stage, launcher="deepspeed").run(tmp_path / "deepspeed")
    ours, theirs = _losses(tmp_path / "zerobench"), _losses(tmp_path / "deepspeed")
    assert len(ours) == len(theirs) == 6
    worst = max(abs(one - other) / abs(other) for one, other in zip(ours, theirs, strict=True))
    record_property("worst", worst)
    assert worst < _TOLERANCE
