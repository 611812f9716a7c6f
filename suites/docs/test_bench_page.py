"""The predicted table of docs/bench.md is what the closed forms say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from suites.reports.page import markdown_tables
from zerobench import models
from zerobench.bench import STAGES_OF_ZERO, rows
from zerobench.scenario import Scenario
from zerobench.theory import memory, offload, traffic

_PAGE = Path(__file__).parents[2] / "docs" / "bench.md"
_TITLE = "A vision transformer of a billion parameters, predicted"
_BASE = Scenario(model=models.SIZES["vit-1b"], world=8, dtype="bf16", micro_batch=4, data="random", device="cuda")
_STEP = 2


def lines() -> Iterator[list[str]]:
    """Of each stage and offload setting: GB on the device, of parameters whole at once, elsewhere, and moved."""
    for row in rows(_BASE, ["reference"], STAGES_OF_ZERO, ("none", "cpu", "nvme"))[:-1]:
        scenario, model = row.scenario, models.shapes(row.scenario)
        held = memory.predicted(scenario, model)
        ledger = traffic.predicted(scenario, model, step=_STEP)
        off = offload.predicted(scenario, model, _STEP)
        assert held
        assert ledger
        values = [
            *(held[name] for name in ("parameters", "gradients", "optimizer")),
            sum(held.values()),
            memory.parameter_peak(scenario, model, step=_STEP),
            sum(off.host.values()),
            sum(off.files.values()),
            sum(each.sent for each in ledger.values()),
            sum(off.moved.get(name, 0) for name in ("to_host", "to_device")),
            sum(off.moved.get(name, 0) for name in ("file_read", "file_written")),
        ]
        yield [str(scenario.stage), scenario.optimizer_at, *(f"{value / 1e9:.2f}" for value in values)]


def test_predicted_table() -> None:
    """Every number, as it stands there."""
    [_, _, *shown] = markdown_tables(_PAGE.read_text(encoding="utf-8"))[_TITLE]
    assert shown == list(lines())
