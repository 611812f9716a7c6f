"""Errors that a script catches by the classes that DeepSpeed raises, and the message of a skipped step."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.compat.checkpoint.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from zerobench.compat.profiling import monitors
from zerobench.engine.errors import CheckpointError, ConfigError
from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


@pytest.mark.parametrize(
    "config", [None, "no_such_file.json", {"train_batch_size": 8, "my_section": {"stage": 4}, "fp16": 3}]
)
def test_a_wrong_configuration(config: Any) -> None:
    """It is the engine's ConfigError, so a ValueError, and an AssertionError as in DeepSpeed."""
    for kind in (ConfigError, AssertionError):
        with pytest.raises(kind):
            loops.deepspeed().initialize(model=nn.Linear(5, 5), config=config)


_WRONG_PARAMETERS: list[dict[str, Any]] = [
    {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_step": 3}}},
    {"scheduler": {"type": "WarmupDecayLR", "params": {}}},
    {"scheduler": {"type": "StepLR", "params": {"step_sizes": 3}}},
    {"optimizer": {"type": "AdamW", "params": {"lrr": 3}}},
]


def _wrong_parameters(group: dist.ProcessGroup) -> list[str]:
    """The messages of the TypeErrors."""
    messages = []
    for sections in _WRONG_PARAMETERS:
        try:
            loops.deepspeed().initialize(model=nn.Linear(5, 5), config=loops.config(0, **sections))
        except TypeError as error:
            messages.append(str(error))
    return messages


def test_wrong_parameters(pool: Pool) -> None:
    """Of a schedule or an optimizer: they are also TypeErrors, because DeepSpeed calls the class with them."""
    [messages] = pool.run(_wrong_parameters, world=1)
    assert [text.partition(":")[0] for text in messages] == [
        "scheduler.params.warmup_num_step",
        "scheduler.params of WarmupDecayLR",
        "scheduler.params.step_sizes",
        "optimizer.params.lrr",
    ]


def test_a_configuration_as_an_object() -> None:
    """The same classes."""
    for kind in (ConfigError, AssertionError, TypeError):
        with pytest.raises(kind, match="train_batch_size"):
            loops.deepspeed().DeepSpeedConfig({"train_batch_size": "many"})


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a monitor: it is also an ImportError."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"wandb\.enabled needs the package wandb"):
        monitors.MonitorMaster(monitors.get_monitor_config({"wandb": {"enabled": True}}))


def test_no_weights(tmp_path: Path) -> None:
    """Without a checkpoint zero_to_fp32 raises the engine's CheckpointError, with the classes of DeepSpeed."""
    kinds: list[type[Exception]] = [CheckpointError, FileNotFoundError, ValueError]
    for kind in kinds:
        with pytest.raises(kind, match="no_such_folder"):
            get_fp32_state_dict_from_zero_checkpoint(tmp_path / "no_such_folder", "no_such_tag")


def _caught(group: dist.ProcessGroup, stage: int, folder: str) -> list[str]:
    """The calls that raise no AssertionError."""
    net = nn.Linear(5, 5)
    engine, *_ = loops.deepspeed().initialize(model=net, config=loops.config(stage))
    calls: dict[str, Callable[[], Any]] = {
        "missing tag": lambda: engine.load_checkpoint(folder, "no_such_tag"),
        "not a scalar": lambda: engine.backward(engine(torch.ones(2, 5))),
        "no graph": lambda: engine.backward(torch.tensor(1.0)),
    }
    if stage > 1:
        calls["no_sync"] = lambda: engine.no_sync().__enter__()
    others = []
    for name, call in calls.items():
        try:
            call()
        except AssertionError:
            continue
        except Exception as error:  # noqa: BLE001
            others.append(f"{name}: {type(error).__name__}")
    engine.destroy()
    return others


def test_calls(pool: Pool, tmp_path: Path) -> None:
    """The errors are also AssertionErrors, as in DeepSpeed."""
    ranks = pool.run(loops.at_every_stage, _caught, str(tmp_path), world=_WORLD)
    assert ranks == [[[], [], [], []]] * _WORLD


def _skipped(group: dist.ProcessGroup, stage: int, loss_scale: int) -> list[tuple[str, str]]:
    """The lines of rank 0's logger in two steps that both overflow."""
    ds, seen = loops.deepspeed(), []
    fp16 = {"enabled": True, "loss_scale": loss_scale, "initial_scale_power": 4, "hysteresis": 2}
    config = loops.config(stage, fp16=fp16, gradient_accumulation_steps=1, train_batch_size=8)
    engine, *_ = ds.initialize(model=nn.Linear(5, 5), config=config)
    logger, handler = ds.utils.logger, logging.Handler()
    handler.emit = lambda record: seen.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for _ in range(2):
            engine.backward(engine(torch.ones(2, 5).half()).float().sum() * 1e9)
            engine.step()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    engine.destroy()
    return [each for each in seen if "OVERFLOW" in each[1]]


def test_skipped_steps(pool: Pool) -> None:
    """Rank 0 logs DeepSpeed's words at DeepSpeed's level, with a dynamic loss scale."""
    [first, *others] = pool.run(loops.at_every_stage, _skipped, 0, world=_WORLD)
    begin = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16"
    expected = [
        ("INFO", f"{begin}, but hysteresis is 2. Reducing hysteresis to 1"),
        ("INFO", f"{begin}, reducing to 8"),
    ]
    assert first == [expected] * 4
    assert others == [[[]] * 4] * (_WORLD - 1)


def test_skipped_steps_of_a_static_scale(pool: Pool) -> None:
    """They are warnings."""
    text = "[Rank 0] [deepspeed] OVERFLOW! Skipping step. Gradients are non-finite, weights were not updated."
    assert pool.run(loops.at_every_stage, _skipped, 8, world=_WORLD)[0] == [[("WARNING", text)] * 2] * 4
