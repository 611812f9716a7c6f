"""Universal checkpoints that the installed DeepSpeed converts: loaded into this engine and into DeepSpeed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from zerobench import export_deepspeed_checkpoint
from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.ranks import Pool
from zerobench.scenario import Optimizer
from zerobench.subjects.deepspeed_config import config
from zerobench.suites.api.checkpoint.exchanged import (
    LIMIT,
    MODEL,
    NEEDS_DEEPSPEED,
    SCENARIO,
    demand_equal,
    load,
    to_universal,
    train_and_save,
)
from zerobench.suites.api.checkpoint.universal import convert

pytestmark = NEEDS_DEEPSPEED


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_universal(two: Pool, three: Pool, stage: int, tmp_path: Path) -> None:
    """A universal checkpoint keeps every state on the same and on another number of ranks, except frozen parameters
    and buffers (reports/findings/deepspeed/universal-frozen-and-buffers), which this model does not have; and so does
    the conversion of a checkpoint that this engine has exported."""
    model = dataclasses.replace(MODEL, buffers=False, frozen=False)
    scenario = SCENARIO.but(model=model, stage=stage, dtype="fp16")
    own, exported = tmp_path / "own", tmp_path / "exported"
    expected = two.run(train_and_save, "deepspeed", scenario, own, timeout=LIMIT)[0]
    two.run(load, "reference", scenario, own, 0, tmp_path / "ours", timeout=LIMIT)
    export_deepspeed_checkpoint(tmp_path / "ours", exported, config(scenario), world=2)
    for directory in (own, exported):
        two.run(to_universal, directory, world=1, timeout=LIMIT)
        for ranks in (two, three):
            for got, counters in ranks.run(
                load, "deepspeed-universal", scenario.but(world=ranks.world), directory, timeout=LIMIT
            ):
                demand_equal(got, expected)
                assert counters == (3, 0)


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_import_of_universal(
    two: Pool, three: Pool, stage: int, dtype: Any, second_group: bool, tmp_path: Path
) -> None:
    """An engine of another stage and world size has every state of a universal checkpoint, frozen parameters and
    buffers among them; and the converter of the tests without DeepSpeed writes the same files."""
    scenario = SCENARIO.but(stage=stage, dtype=dtype, optimizer=Optimizer(second_group=second_group))
    expected = two.run(train_and_save, "deepspeed", scenario, tmp_path, timeout=LIMIT)[0]
    two.run(to_universal, tmp_path, world=1, timeout=LIMIT)
    (tmp_path / "latest").unlink()
    for other, world in ((3, 3), (stage, 2), (0, 1)):
        changed = scenario.but(stage=other, world=world)
        for got, counters in three.run(load, "reference", changed, tmp_path, world=world, timeout=LIMIT):
            demand_equal(got, expected)
            assert counters == (3, 0)
    convert(tmp_path / "global_step3", tmp_path / "of_the_tests")
    _demand_same_files(tmp_path / "of_the_tests", tmp_path / "global_step3_universal")


def _demand_same_files(got: Path, expected: Path) -> None:
    """The same names, and equal content in plain types and tensors."""
    names = [sorted(str(path.relative_to(each)) for path in each.rglob("*.pt")) for each in (got, expected)]
    assert names[0] == names[1]
    for name in names[0]:
        assert _plain(pickles.read_any(got / name)) == _plain(pickles.read_any(expected / name)), name


def _plain(value: Any) -> Any:
    """A content that compares by value; padding may be NaN, so tensors compare by their bits."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.reshape(-1).contiguous().view(torch.uint8).tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return vars(value) if hasattr(value, "__dict__") else value
