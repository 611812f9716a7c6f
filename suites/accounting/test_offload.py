"""Offload: the bytes off the device, and those that a step moves to and from there, in closed form."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume

from zerobench.judge.ledger import Entry
from zerobench.scenario import Scenario
from zerobench.suites.accounting import costs, grid
from zerobench.suites.accounting.ledger import demand, judge, ledgers, offers
from zerobench.suites.support.strategies import UNDISTURBED, USUAL_STEPS, drawn, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.theory.layout import owned, units
from zerobench.workload import models


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.OFFLOAD.values(), ids=grid.OFFLOAD)
def test_offload(counted: Trials, scenario: Scenario) -> None:
    """In each of the first three steps and on every rank, bytes in host memory, in files and moved between them and the
    device are those of the closed form."""
    judge(counted, scenario, costs.offload)


@drawn(scenarios(**UNDISTURBED, **USUAL_STEPS), share=0.35, of_others=1)
def test_offload_whatever_the_scenario(counted: Trials, scenario: Scenario) -> None:
    """For all models and settings, the bytes are those of the closed form; all are 0 without offload."""
    assume(offers(counted, scenario, costs.offload))
    costs.offload(counted, scenario)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("dtype", "accumulation", "stage", "place"),
    [*product(["bf16"], [3], [1, 2, 3], ["cpu", "nvme"]), ("bf16", 1, 2, "cpu"), ("fp16", 1, 1, "nvme")],
)
def test_four_bytes_an_element(reference: Trials, dtype: str, accumulation: int, stage: int, place: str) -> None:
    """16-bit training with gradients kept in 16 bits moves 2 bytes down and 2 bytes up for each owned element, exactly,
    for every number of ranks and micro-steps."""
    scenario = grid.HALF.but(dtype=dtype, accumulator_dtype=dtype, accumulation=accumulation, stage=stage)
    elements = owned(units(scenario, models.build(scenario)))
    for ledger in ledgers(reference, scenario.but(offload_optimizer=place), "offload"):
        for step, seen in enumerate(ledger.offload):
            for way in ("to_host", "to_device"):
                entry, got = Entry("moved", f"bytes moved {way} in step {step}", way, step), seen.moved.get(way)
                demand(
                    reference, scenario, ledger.rank, entry, got, 2 * elements, "2 * owned elements each way", "offload"
                )


@pytest.mark.ci
@pytest.mark.parametrize("count", [4, 6, 12])
def test_buffers_are_bounded(reference: Trials, count: int) -> None:
    """If states are in files, host memory is at most ``buffer_count`` buffers of ``buffer_size`` elements."""
    scenario = grid.HALF.but(
        stage=2, offload_optimizer="nvme", buffer_count=count, buffer_size=8192, pipeline_read=True
    )
    for ledger in ledgers(reference, scenario, "offload"):
        host = ledger.offload[-1].host
        kinds = Entry("host", "kinds of states in host memory")
        demand(reference, scenario, ledger.rank, kinds, list(host), ["buffers"], "nothing else", "offload")
        size, bound = Entry("host", f"{host['buffers']} bytes of buffers", "buffers"), count * 8192 * 4
        demand(reference, scenario, ledger.rank, size, host["buffers"] <= bound, True, f"<= {bound}", "offload")
