"""Checkpoints of the reference engine: a resumed run has the bits of one that was never interrupted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zerobench
from zerobench.engine.checkpoint import loading
from zerobench.engine.checkpoint.memory import memory_for
from zerobench.engine.checkpoint.pieces import Range
from zerobench.suites.api.checkpoint import saved

_SCHEDULES: list[Any] = [
    lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3]),
    lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
    lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
        ],
        [2],
    ),
]


class _Model(nn.Module):
    """Dropout, a running mean, and a frozen layer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(8, 40), nn.BatchNorm1d(40), nn.Dropout(0.3), nn.Linear(40, 1))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.frozen(x)).square().mean()
        return out


def _engine(seed: int, schedule: Any = None, **config: Any) -> zerobench.Engine:
    settings = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "gradient_accumulation_steps": 2, **config}
    given = {"train_micro_batch_size_per_gpu": 4, **settings}
    return zerobench.initialize(_Model(seed), given, lr_scheduler=schedule)[0]


def _train(engine: zerobench.Engine, steps: int) -> list[float]:
    """Steps on data from the global generator, which the dropout uses too."""
    losses = []
    for _ in range(steps * engine.gradient_accumulation_steps):
        loss = engine(torch.randn(4, 8) * random.gauss(1, 1) * np.random.rand())  # noqa: NPY002 - the global generators
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def _states(engine: zerobench.Engine) -> dict[str, Any]:
    """Everything that training reads."""
    with zerobench.GatheredParameters(engine.module):
        values = {name: each.detach().clone() for name, each in engine.module.state_dict().items()}
    for name, parameter in engine.module.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            state = zerobench.safe_get_full_optimizer_state(parameter, key)
            if state is not None:
                values[f"{name}.{key}"] = state
    groups = [{key: value for key, value in each.items() if key != "params"} for each in engine.optimizer.param_groups]
    schedule = engine.lr_scheduler.state_dict() if engine.lr_scheduler else None
    counters = (engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.loss_scale)
    return {**{name: value.tolist() for name, value in values.items()}, "other": [groups, repr(schedule), counters]}


@pytest.mark.parametrize("schedule", [None, *_SCHEDULES])
@pytest.mark.parametrize("stage", [0, 3])
def test_random_numbers_schedules_and_buffers_resume(schedule: Any, stage: int, tmp_path: Path) -> None:
    """Losses after a load are those of the uninterrupted run, whose data and dropout are drawn from the global
    generators; then every state is the same."""
    zero = {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100}}
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator
    whole = _engine(0, schedule, **zero)
    _train(whole, 2)
    random.gauss(0, 1)  # keeps a second number for the next call
    assert whole.save_checkpoint(tmp_path, client_state={"epoch": 3, "best": (1.5, float("inf")), "by": {1: "one"}})
    expected = _train(whole, 3)
    last = random.gauss(0, 1), np.random.randn()  # noqa: NPY002 - the global generator
    other = _engine(1, schedule, **zero)
    _train(other, 1)
    path, client_state = other.load_checkpoint(tmp_path)
    assert path == str(tmp_path / "global_step2")
    assert client_state == {"epoch": 3, "best": (1.5, float("inf")), "by": {1: "one"}}
    assert _train(other, 3) == expected
    assert (random.gauss(0, 1), np.random.randn()) == last  # noqa: NPY002 - the global generator
    assert _states(other) == _states(whole)


@pytest.mark.parametrize(
    ("config", "copied"),
    [
        ({}, set()),
        ({"zero_optimization": {"stage": 1, "chunk_size": 32, "offload_optimizer": {"device": "cpu"}}}, set()),
        ({"bf16": {"enabled": False}}, {"master"}),
    ],
    ids=["bf16", "offload", "fp32"],
)
def test_a_load_copies_only_the_states_that_share_their_memory(
    config: dict[str, Any], copied: set[str], tmp_path: Path
) -> None:
    """A state in host memory becomes the memory that the values were read into; in fp32 the master is the parameter."""
    first = saved.engine(**config)
    saved.train(first)
    first.save_checkpoint(tmp_path)
    other = saved.engine(seed=1, **config)
    addresses: set[int] = set()

    def recorded(*given: Any) -> dict[Range, Tensor]:
        memory = memory_for(*given)
        addresses.update(each.untyped_storage().data_ptr() for each in memory.values())
        return memory

    with mock.patch.object(loading, "memory_for", recorded):
        other.load_checkpoint(tmp_path)
    for state in (each for each in other.states if each.unit.trainable):
        memory = state.optimizer_store.memory(state.portion)
        assert {kind for kind, each in memory.items() if each.data_ptr() not in addresses} == copied
    assert saved.states(other) == saved.states(first)


def test_a_buffer_that_is_not_persistent_is_not_saved(tmp_path: Path) -> None:
    """As in a ``state_dict``; the model's own one and that of a submodule stay as they are."""

    def made(value: float) -> zerobench.Engine:
        model = saved.Model()
        for module in (model, model.body):
            module.register_buffer("cache", torch.full((2,), value), persistent=False)
        return saved.engine(model=model)

    one, other = made(1.0), made(2.0)
    one.module.get_buffer("scale").fill_(3.0)
    one.save_checkpoint(tmp_path)
    other.load_checkpoint(tmp_path)
    assert [other.module.get_buffer(name).tolist() for name in ("cache", "body.cache")] == [[2.0, 2.0]] * 2
    assert other.module.get_buffer("scale").tolist() == [3.0, 3.0, 3.0]


def test_a_record_is_strict_json(tmp_path: Path) -> None:
    """Any JSON parser reads it: no NaN, no Infinity."""
    _engine(0).save_checkpoint(tmp_path, client_state={"best": float("nan")})
    text = (tmp_path / "global_step0" / "checkpoint.json").read_text(encoding="utf-8")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(text, parse_constant=refuse)["contents"]["client_state"] == {
        "best": {"$type": "float", "value": "nan"}
    }
