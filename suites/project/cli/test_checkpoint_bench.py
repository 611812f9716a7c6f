"""The measurement of checkpoints, on a tiny model: from the command to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerobench.suites.bench.checkpoint.__main__ import main
from zerobench.suites.bench.checkpoint.measuring import OPERATIONS
from zerobench.suites.bench.checkpoint.page import render


@pytest.mark.slow
def test_measures_every_operation(tmp_path: Path) -> None:
    """Each operation has a time in each round; the report has a row for each; the disk is as it was."""
    out, disk = tmp_path / "out", tmp_path / "disk"
    assert main(["--model", "nano", "--rounds", "2", "--out", str(out), "--disk", str(disk)]) == 0
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert list(found["seconds"]) == list(OPERATIONS)
    assert all(len(times) == 2 and min(times) > 0 for times in found["seconds"].values())
    report = (out / "report.md").read_text(encoding="utf-8")
    assert report == render(found)
    assert all(f"| {name} | " in report for name in OPERATIONS)
    states = 12 * 0.1e6 / 2  # of 0.1 million parameters: an fp32 master and two states, on two ranks
    assert 0.5 * states < found["bytes"] < 2 * states
    assert 0 < found["peaks"]["save"] <= 1.1 * found["bytes"], "a save may hold one shard more than training"
    assert list(disk.iterdir()) == []
