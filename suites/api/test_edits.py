"""Edits inside GatheredParameters stay, whatever the Scenario."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
import torch.distributed as dist
from torch import Tensor

import zerobench
from zerobench.driver import run_step, start
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.strategies import drawn, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.workload.data import held_out


@drawn(st.tuples(scenarios(steps=1), st.sampled_from([None, 0, 1]), st.integers(0, 3)), share=0.5)
def test_edits_persist(reference: Trials, scenario: tuple[Scenario, int | None, int]) -> None:
    """What is written inside GatheredParameters is there afterwards, on every rank, in parameter and master."""
    one, modifier, which = scenario
    modifier = None if modifier is None else modifier % one.world
    reference.ran += 1
    for rank, (parameter, master, untouched) in enumerate(
        reference.pool.run(_edit, one, modifier, which, world=one.world, timeout=60.0)
    ):
        kept = (parameter == 0.5).all() and (master == 0.5).all()
        assert kept, f"rank {rank} lost the edit: {parameter} (master {master}) in {one.to_json()}"
        assert untouched, f"rank {rank}: reading alone moved a master in {one.to_json()}"


def _edit(
    group: dist.ProcessGroup, scenario: Scenario, modifier: int | None, which: int
) -> tuple[Tensor, Tensor, bool]:
    subject = start(Reference, scenario, group)
    assert isinstance(subject, Reference)
    run_step(subject, scenario, 0, dist.get_rank(group))
    before = subject.parameters()
    with zerobench.GatheredParameters(subject.model):
        pass
    untouched = all(torch.equal(value, before[name]) for name, value in subject.parameters().items())
    trained = [p for p in subject.model.parameters() if p.requires_grad]
    chosen = trained[which % len(trained)]
    with zerobench.GatheredParameters([chosen], modifier_rank=modifier):
        if modifier is None or dist.get_rank(group) == modifier:
            chosen.data.fill_(0.5)
    subject.evaluate(held_out(scenario))
    master = zerobench.safe_get_full_fp32_param(chosen)
    assert master is not None
    with zerobench.GatheredParameters([chosen]):
        seen = chosen.detach().float().clone()
    subject.close()
    return seen, master, untouched
