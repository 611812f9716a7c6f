"""Bounds: they hold for every engine, also for one of which no closed form is known."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from zerobench.model_specs import Gpt
from zerobench.scenario import Scenario
from zerobench.suites.accounting import costs
from zerobench.suites.accounting.ledger import judge
from zerobench.suites.support.trials import Trials

#: A bucket holds a block, of which ten are less than a third. Sequences are short, because the hooks of some engines
#: let Python reach a leaf's activations, which are no gradients.
_DEEP = Scenario(
    model=Gpt(vocab=64, context=4, width=32, layers=32, heads=2),
    chunk=32,
    reduce_bucket=13_000,
    prefetch_bucket=0,
    micro_batch=1,
)
_AGAIN = Gpt(vocab=64, context=64, width=32, layers=32, heads=2, recompute="non_reentrant")
_SCENARIO = _DEEP.but(model=Gpt(vocab=64, context=16, width=64, layers=2, heads=2), world=4, chunk=64)
#: About 2.6 million parameters, which take 10 MB.
_LARGE = Scenario(model=Gpt(vocab=256, context=8, width=256, layers=3, heads=2), micro_batch=1, prefetch_bucket=0)
_PLACES: dict[str, dict[str, Any]] = {
    "half": {"offload_optimizer": "cpu", "offload_ratio": 0.5},
    "files": {"offload_optimizer": "nvme", "pipeline_read": True, "pipeline_write": True},
}


@pytest.mark.ci
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_the_stage_shards_is_sharded(trials: Trials, stage: int) -> None:
    """All ranks together hold one copy, and padding, of the states that the stage shards."""
    judge(trials, _SCENARIO.but(stage=stage), costs.sharded, "dtype")


@pytest.mark.ci
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_backward_holds_its_shard_and_its_buckets(trials: Trials, stage: int, accumulation: int) -> None:
    """If gradients are sharded, no buffer of any name or none has all of them at any collective of a backward, or when
    a micro-step is over."""
    judge(trials, _DEEP.but(stage=stage, accumulation=accumulation), costs.backward, "dtype")


@pytest.mark.ci
@pytest.mark.parametrize("stage", [2, 3])
def test_a_backward_frees_what_it_computes_again(trials: Trials, stage: int) -> None:
    """If a model computes its blocks again, a backward holds their inputs, its shard and its buckets alone: with long
    sequences the outputs of all layers take more, also those of two forwards. The recomputation is not reentrant,
    because gradients of a reentrant one may have to wait for the end of the backward."""
    one = _DEEP.but(stage=stage, model=_AGAIN)
    two = one.but(forwards="two")
    judge(trials, two if trials.offers(two) else one, costs.backward, "dtype", "recompute")


@pytest.mark.ci
@pytest.mark.parametrize(("stage", "place"), [*((stage, "none") for stage in range(4)), *product((1, 3), _PLACES)])
def test_memory_is_in_tensors(trials: Trials, stage: int, place: str) -> None:
    """An engine adds less memory that is no tensor than half its shard of the parameters takes; so it is if states are
    on the host or in files."""
    scenario = _LARGE.but(stage=stage) if place == "none" else _LARGE.but(stage=stage, **_PLACES[place])
    judge(trials, scenario, costs.process)
