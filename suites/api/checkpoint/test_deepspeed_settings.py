"""DeepSpeed's checkpoints under other settings of DeepSpeed, loaded into this engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from zerobench.oracles.optimizer import build_optimizer
from zerobench.ranks import Pool, RankFault
from zerobench.recording import State
from zerobench.scenario import LossScale, Optimizer, Scenario
from zerobench.subjects.deepspeed import DeepSpeed
from zerobench.suites.api.checkpoint.exchanged import (
    LIMIT,
    NEEDS_DEEPSPEED,
    SCENARIO,
    demand_equal,
    load,
    to_universal,
    train_and_save,
)

pytestmark = NEEDS_DEEPSPEED


class RoundRobin(DeepSpeed):
    """DeepSpeed that orders the parameters of a flat group so that their gradients are reduced in turn."""

    def _config(self) -> dict[str, Any]:
        config = super()._config()
        return {**config, "zero_optimization": {**config["zero_optimization"], "round_robin_gradients": True}}


@pytest.mark.parametrize("stage", [1, 2])
def test_import_of_round_robin(two: Pool, three: Pool, stage: int, tmp_path: Path) -> None:
    """So it has if DeepSpeed orders its flat groups in another way; the universal form mixes the parameters up
    (reports/findings/deepspeed/round-robin-order), as DeepSpeed's reading of masters does, and is refused."""
    scenario = SCENARIO.but(dtype="bf16", stage=stage, optimizer=Optimizer(second_group=True))
    saved = two.run(train_and_save, f"{__name__}:{RoundRobin.__name__}", scenario, tmp_path, timeout=LIMIT)[0]
    expected = {name: value for name, value in saved.items() if name.startswith("model")}
    for got, counters in three.run(load, "reference", scenario.but(world=3), tmp_path, timeout=LIMIT):
        demand_equal({name: value for name, value in got.items() if name in expected}, expected)
        masters = [name for name in got if name.startswith("master")]
        assert all(got[name].bfloat16().equal(expected[name.replace("master", "model")]) for name in masters)
        assert counters == (3, 0)
    two.run(to_universal, tmp_path, world=1, timeout=LIMIT)
    (tmp_path / "latest").unlink()
    with pytest.raises(RankFault, match="conversion gives parameters the states of others"):
        three.run(load, "reference", scenario, tmp_path, world=2, timeout=LIMIT)


class Fused(DeepSpeed):
    """DeepSpeed that takes torch's Adam for its fused one: at stage 0 it then keeps a flat tensor for each group."""

    def __init__(self, model: torch.nn.Module, scenario: Scenario, group: dist.ProcessGroup) -> None:
        fused = mock.patch("deepspeed.runtime.engine.FusedAdam", torch.optim.AdamW)  # its own must be compiled
        given = mock.patch(
            "zerobench.subjects.deepspeed_config.client_optimizer",
            lambda spec, named, _: build_optimizer(spec.optimizer, named),
        )
        with fused, given:
            super().__init__(model, scenario, group)

    def _config(self) -> dict[str, Any]:
        return {key: value for key, value in super()._config().items() if key != "optimizer"}

    def _masters(self) -> dict[torch.Tensor, torch.Tensor]:
        flat = zip(self.optimizer.fp16_groups, self.optimizer.fp32_groups_flat, strict=True)
        return {each: part for whole, master in flat for each, part in zip(whole, _unflat(master, whole), strict=True)}

    def _states(self, key: str) -> State:
        pairs = zip(self.optimizer.fp16_groups, self.optimizer.optimizer.state.values(), strict=True)
        kept = {
            each: part for whole, state in pairs for each, part in zip(whole, _unflat(state[key], whole), strict=True)
        }
        return {name: kept[each] for name, each in self.trained.items()}


def _unflat(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    parts = torch.split(flat.detach(), [each.numel() for each in like])
    return (part.view(each.shape) for part, each in zip(parts, like, strict=True))


@pytest.mark.parametrize("second_group", [False, True])
@pytest.mark.parametrize("power", [4, None])
def test_import_of_the_fused_layout(
    two: Pool, three: Pool, power: int | None, second_group: bool, tmp_path: Path
) -> None:
    """So it has if DeepSpeed's stage 0 keeps one flat tensor for each group, with a dynamic and a static loss scale."""
    scale = LossScale(static=8.0) if power is None else LossScale(initial_power=power, window=1)
    scenario = SCENARIO.but(stage=0, dtype="fp16", loss_scale=scale, optimizer=Optimizer(second_group=second_group))
    expected = two.run(train_and_save, f"{__name__}:{Fused.__name__}", scenario, tmp_path, timeout=LIMIT)[0]
    for other, world in ((3, 3), (0, 2), (1, 1)):
        changed = scenario.but(stage=other, world=world)
        for got, counters in three.run(load, "reference", changed, tmp_path, world=world, timeout=LIMIT):
            demand_equal({name: got[name] for name in expected}, expected)
            assert counters == (3, 0)


def demand_imported(
    three: Pool, scenario: Scenario, directory: Path, universal: bool, expected: State, counters: tuple[int, int]
) -> None:
    """The engine has the states and counters of the checkpoint, or of its universal form."""
    if universal:
        three.run(to_universal, directory, world=1, timeout=LIMIT)
        (directory / "latest").unlink()
    for got, counted in three.run(load, "reference", scenario.but(world=3), directory, timeout=LIMIT):
        demand_equal(got, expected)
        assert counted == counters


@pytest.mark.parametrize(("stage", "universal"), [(0, False), (1, False), (2, False), (3, False), (1, True), (2, True)])
def test_import_before_the_first_update(two: Pool, three: Pool, stage: int, universal: bool, tmp_path: Path) -> None:
    """So it has after a skipped step alone, when DeepSpeed's optimizer has no states yet."""
    scenario = SCENARIO.but(stage=stage, dtype="fp16", steps=1, poison=((0, 0),))
    expected = two.run(train_and_save, "deepspeed", scenario, tmp_path, timeout=LIMIT)[0]
    demand_imported(three, scenario, tmp_path, universal, expected, (1, 1))


@pytest.mark.parametrize("universal", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_import_of_offloaded_states(two: Pool, three: Pool, stage: int, universal: bool, tmp_path: Path) -> None:
    """So it has if DeepSpeed keeps masters, optimizer states and at stage 3 parameters in host memory."""
    offload: dict[str, Any] = {"offload_optimizer": "cpu", "offload_param": "cpu"}
    scenario = SCENARIO.but(dtype="bf16", stage=stage, optimizer=Optimizer(second_group=True), **offload)
    expected = two.run(train_and_save, "deepspeed", scenario, tmp_path, timeout=LIMIT)[0]
    demand_imported(three, scenario, tmp_path, universal, expected, (3, 0))
