"""Offload: what is off the device, and what a step moves to and from there, in closed form to the byte."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zerobench
from zerobench.judge.ledger import Entry, LedgerPart
from zerobench.scenario import LossScale, Scenario
from zerobench.suites.accounting import grid
from zerobench.suites.accounting.ledgers import demand, ledgers
from zerobench.suites.support.strategies import drawn, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.theory import offload
from zerobench.theory.layout import owned, units
from zerobench.workload import models

_PARTS: tuple[LedgerPart, ...] = ("host", "files", "moved")


@pytest.mark.parametrize("scenario", grid.OFFLOAD.values(), ids=grid.OFFLOAD)
def test_offload(reference: Trials, scenario: Scenario) -> None:
    """In each of the first three steps and on every rank, bytes in host memory, in files and moved between them and the
    device are those of the closed form."""
    _demand_offload(reference, scenario)


@drawn(scenarios(loss_scale=LossScale(static=1.0)), share=0.5)  # no step overflows, and so none is skipped
def test_offload_whatever_the_scenario(reference: Trials, scenario: Scenario) -> None:
    """Whatever the model and the settings, the bytes are those of the closed form; all are 0 without offload."""
    _demand_offload(reference, scenario)


@pytest.mark.parametrize(
    ("dtype", "accumulation", "stage", "place"),
    [*product(["bf16"], [3], [1, 2, 3], ["cpu", "nvme"]), ("bf16", 1, 2, "cpu"), ("fp16", 1, 1, "nvme")],
)
def test_four_bytes_an_element(reference: Trials, dtype: str, accumulation: int, stage: int, place: str) -> None:
    """16-bit training with gradients kept in 16 bits moves 2 bytes down and 2 bytes up for each owned element, exactly,
    however many ranks and micro-steps there are."""
    scenario = grid.HALF.but(dtype=dtype, accumulator_dtype=dtype, accumulation=accumulation, stage=stage)
    elements = owned(units(scenario, models.build(scenario)))
    for ledger in ledgers(reference, scenario.but(offload_optimizer=place)):
        for step, seen in enumerate(ledger.offload):
            for way in ("to_host", "to_device"):
                entry, got = Entry("moved", f"bytes moved {way} in step {step}", way, step), seen.moved.get(way)
                demand(reference, scenario, ledger.rank, entry, got, 2 * elements, "2 * owned elements each way")


@pytest.mark.parametrize("count", [4, 6, 12])
def test_buffers_are_bounded(reference: Trials, count: int) -> None:
    """With states in files no more host memory is in use than ``buffer_count`` buffers of ``buffer_size`` elements."""
    scenario = grid.HALF.but(
        stage=2, offload_optimizer="nvme", buffer_count=count, buffer_size=8192, pipeline_read=True
    )
    for ledger in ledgers(reference, scenario):
        host = ledger.offload[-1].host
        kinds = Entry("host", "kinds of states in host memory")
        demand(reference, scenario, ledger.rank, kinds, list(host), ["buffers"], "nothing else")
        size, bound = Entry("host", f"{host['buffers']} bytes of buffers", "buffers"), count * 8192 * 4
        demand(reference, scenario, ledger.rank, size, host["buffers"] <= bound, True, f"<= {bound}")


@pytest.mark.parametrize(("prefetch", "ahead"), [(0, 1), (1, 3), (2 * 64 * 64, 3)])
@pytest.mark.parametrize("place", ["cpu", "nvme"])
def test_shards_are_asked_for_ahead(tmp_path: Path, place: str, prefetch: int, ahead: int) -> None:
    """With prefetch as many shards as it allows, and two at least, are on their way up beside the one wanted now."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(5)))
    section = {"device": place} | ({"nvme_path": str(tmp_path), "max_in_cpu": 0} if place == "nvme" else {})
    stage3 = {"stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
    zero = {"stage": 3, "stage3_prefetch_bucket_size": prefetch, "offload_param": section, **stage3}
    config = {"train_batch_size": 1, "optimizer": {"type": "SGD"}, "zero_optimization": zero}
    engine, *_ = zerobench.initialize(model, config)
    coming: set[int] = set()
    most = 0

    def watch(home: Any) -> None:
        nonlocal most
        asked, load = home.prefetch, home.load

        def prefetching() -> None:
            nonlocal most
            coming.add(id(home))
            most = max(most, len(coming))
            asked()

        def loading() -> Tensor:
            coming.discard(id(home))
            return load()  # type: ignore[no-any-return]

        home.prefetch, home.load = prefetching, loading

    for state in engine.states:
        watch(state.home)
    for _ in range(2):  # the first learns the order
        engine.backward(engine(torch.ones(1, 64)).sum())
        engine.step()
    engine.destroy()
    assert most == ahead


def _demand_offload(trials: Trials, scenario: Scenario) -> None:
    model = models.build(scenario)
    for ledger in ledgers(trials, scenario):
        for step, got in enumerate(ledger.offload):
            expected = offload.predicted(scenario, model, step)
            for part in _PARTS:
                sizes, form = getattr(got, part), getattr(expected, part)
                for name in sorted({*sizes, *form}):
                    entry = Entry(part, f"{part}, {name}, bytes in step {step}", name, step)
                    sizes_of = sizes.get(name, 0), form.get(name, 0)
                    demand(trials, scenario, ledger.rank, entry, *sizes_of, offload.FORMULAS[name])
