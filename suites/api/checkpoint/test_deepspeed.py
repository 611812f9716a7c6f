"""Checkpoints between this engine and the installed DeepSpeed, with every bit of the training state, both ways."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from zerobench import export_deepspeed_checkpoint
from zerobench.ranks import Pool, RankFault
from zerobench.scenario import LossScale, Optimizer
from zerobench.subjects.deepspeed_config import config
from zerobench.suites.api.checkpoint.exchanged import (
    LIMIT,
    MODEL,
    NEEDS_DEEPSPEED,
    SCENARIO,
    demand_equal,
    load,
    train_and_save,
)

pytestmark = NEEDS_DEEPSPEED


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", range(4))
def test_import(two: Pool, three: Pool, stage: int, dtype: Any, second_group: bool, tmp_path: Path) -> None:
    """An engine of another stage and world size has the masters, parameters, optimizer states and counters."""
    scenario = SCENARIO.but(stage=stage, dtype=dtype, optimizer=Optimizer(second_group=second_group))
    expected = two.run(train_and_save, "deepspeed", scenario, tmp_path, timeout=LIMIT)[0]
    for other, world in ((3, 3), (stage, 2), (1, 1)):
        changed = scenario.but(stage=other, world=world)
        for got, counters in three.run(load, "reference", changed, tmp_path, world=world, timeout=LIMIT):
            demand_equal(got, expected)
            assert counters == (3, 0)


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", range(4))
def test_export(two: Pool, three: Pool, stage: int, dtype: Any, second_group: bool, tmp_path: Path) -> None:
    """DeepSpeed has the masters, parameters, optimizer states and counters of an engine of another stage and world
    size."""
    scenario = SCENARIO.but(dtype=dtype, optimizer=Optimizer(second_group=second_group))
    saved, exported = tmp_path / "saved", tmp_path / "exported"
    other = scenario.but(stage=(stage + 2) % 4, world=3)
    expected = three.run(train_and_save, "reference", other, saved, timeout=LIMIT)[0]
    wanted = scenario.but(stage=stage)
    export_deepspeed_checkpoint(saved, exported, config(wanted), world=2)
    for got, counters in two.run(load, "deepspeed", wanted, exported, timeout=LIMIT):
        demand_equal(got, expected)
        assert counters == (3, 0)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("stage", range(4))
def test_there_and_back(two: Pool, three: Pool, stage: int, dtype: Any, tmp_path: Path) -> None:
    """DeepSpeed goes on from its own checkpoint, which this engine has loaded, saved and exported, as if it had never
    stopped: the groups' states, the step counts and the loss scale have come through. Below stage 3 DeepSpeed saves
    the buffers of rank 0 alone, so the model has none."""
    model = dataclasses.replace(MODEL, buffers=False)
    grows = LossScale(initial_power=4, window=4)  # in the last step, as the first one counts
    scenario = SCENARIO.but(
        model=model, stage=stage, dtype=dtype, optimizer=Optimizer(second_group=True), loss_scale=grows
    )
    first, ours, back = (tmp_path / name for name in ("first", "ours", "back"))
    whole = two.run(train_and_save, "deepspeed", scenario.but(steps=5), tmp_path / "whole", timeout=LIMIT)
    two.run(train_and_save, "deepspeed", scenario, first, timeout=LIMIT)
    three.run(load, "reference", scenario.but(stage=3 - stage, world=3), first, 0, ours, timeout=LIMIT)
    export_deepspeed_checkpoint(ours, back, config(scenario), world=2)
    for got, expected in zip(two.run(load, "deepspeed", scenario, back, 2, timeout=LIMIT), whole, strict=True):
        demand_equal(got[0], expected)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_another_number_of_ranks(two: Pool, three: Pool, stage: int, tmp_path: Path) -> None:
    """DeepSpeed refuses its own checkpoint on another number of ranks, and takes it by way of this engine."""
    scenario = SCENARIO.but(model=dataclasses.replace(MODEL, buffers=False), stage=stage, dtype="bf16")
    first, ours, back = (tmp_path / name for name in ("first", "ours", "back"))
    expected = two.run(train_and_save, "deepspeed", scenario, first, timeout=LIMIT)[0]
    more = scenario.but(world=3)
    refusal = "raised AssertionError" if stage == 3 else "used a DP world size of 2 but the current world size is 3"
    with pytest.raises(RankFault, match=refusal):  # at stage 3 rank 2 finds no file of its own
        three.run(load, "deepspeed", more, first, timeout=LIMIT)
    two.run(load, "reference", scenario, first, 0, ours, timeout=LIMIT)
    export_deepspeed_checkpoint(ours, back, config(more), world=3)
    for got, counters in three.run(load, "deepspeed", more, back, timeout=LIMIT):
        demand_equal(got, expected)
        assert counters == (3, 0)
