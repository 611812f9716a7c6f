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
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

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
    calls["tags of the ranks"] = lambda: engine.save_checkpoint(folder, f"of_rank_{dist.get_rank()}")
    bare: Any = {name: value for name, value in loops.config(stage).items() if name not in ("optimizer", "scheduler")}
    evaluates, *_ = loops.deepspeed().initialize(model=nn.Linear(5, 5), config=bare)
    calls["backward without an optimizer"] = lambda: evaluates.backward(evaluates(torch.ones(2, 5)).sum())
    calls["step without an optimizer"] = evaluates.step
    others = []
    for name, call in calls.items():
        try:
            call()
        except AssertionError:
            continue
        except Exception as error:  # noqa: BLE001
            others.append(f"{name}: {type(error).__name__}")
    engine.destroy()
    evaluates.destroy()
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


_NO_PARAMETERS: list[tuple[Callable[[nn.Sequential], dict[str, Any]], str]] = [
    (lambda net: {"params": [list(net.parameters())]}, "got a list among the parameters; give parameters, such as"),
    (lambda net: {"params": net.named_parameters()}, "got a tuple among the parameters; give parameters, such as"),
    (lambda net: {"params": [net[0]]}, "got a Linear among the parameters; give parameters, such as"),
    (lambda net: {"params": net, "modifier_rank": 4}, "got modifier_rank 4; give a rank from 0 to 3"),
    (lambda net: {"params": net, "modifier_rank": -1}, "got modifier_rank -1; give a rank from 0 to 3"),
]


def _wrong_gathers(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The errors of GatheredParameters; None, as of a layer without a bias, is none."""
    ds, net, messages = loops.deepspeed(), loops.model(), []
    engine, *_ = ds.initialize(model=net, config=loops.config(stage))
    for given, _ in _NO_PARAMETERS:
        try:
            with ds.zero.GatheredParameters(**given(net)):
                pass
        except ConfigError as error:
            messages.append(str(error))
    with ds.zero.GatheredParameters(None, modifier_rank=0), ds.zero.GatheredParameters([next(net.parameters()), None]):
        next(net.parameters()).detach().clone()
    engine.destroy()
    return messages


def test_wrong_gathers(pool: Pool) -> None:
    """The same errors at every stage; None had none in a list alone, and such a rank was gloo's error at stage 3."""
    for stages in pool.run(loops.at_every_stage, _wrong_gathers, world=_WORLD):
        for messages in stages:
            assert len(messages) == len(_NO_PARAMETERS)
            assert all(text in message for message, (_, text) in zip(messages, _NO_PARAMETERS, strict=True))


def _engine_as_model(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The errors of engines in place of models; the engine trains on."""
    ds, net, messages = loops.deepspeed(), loops.model(), []
    engine, _, loader, _ = ds.initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    for model in (engine, nn.Sequential(engine, nn.Linear(3, 3))):
        try:
            ds.initialize(model=model, config=loops.config(stage))
        except ConfigError as error:
            messages.append(str(error))
    engine.backward(loops.loss(engine, next(iter(loader))))
    engine.step()
    engine.destroy()
    return messages


def test_an_engine_as_a_model(pool: Pool) -> None:
    """An error at every stage; it had trained below stage 3, where the new engine's forward called a destroyed one."""
    for stages in pool.run(loops.at_every_stage, _engine_as_model, world=_WORLD):
        for alone, inside in stages:
            assert "is an engine; give the engine's module, engine.module" in alone
            assert "has the engine of an earlier initialize() at '0'; give" in inside


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 5)


#: By argument: a value that cannot be used, and a part of the message.
_WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"model": nn.Linear}, "model of deepspeed.initialize() is the class Linear; give a torch.nn.Module"),
    ({"model": print}, "model of deepspeed.initialize() is of type builtin_function_or_method"),
    ({"optimizer": "adam"}, "optimizer of deepspeed.initialize() is of type str; give a torch optimizer"),
    ({"lr_scheduler": 3}, "lr_scheduler of deepspeed.initialize() is of type int; give a schedule"),
    (
        {"training_data": DataLoader(TensorDataset(torch.ones(2)))},
        "training_data of deepspeed.initialize() is of type DataLoader",
    ),
    ({"model_parameters": nn.Linear(2, 2).parameters}, "model_parameters of deepspeed.initialize() is of type method"),
    ({"model_parameters": "all"}, "model_parameters of deepspeed.initialize() is of type str"),
    ({"model_parameters": {"params": []}}, "model_parameters of deepspeed.initialize() is of type dict"),
    ({"model_parameters": ["bias"]}, "model_parameters of deepspeed.initialize() have something of type str"),
    ({"model_parameters": [{"lr": 0.1}]}, "a group of model_parameters has no 'params', only 'lr'"),
    ({"model_parameters": iter([])}, "model_parameters of deepspeed.initialize() is empty; an iterator"),
]


def _wrong_arguments(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The messages that lack what they should say."""
    wrong = []
    for given, says in _WRONG_ARGUMENTS:
        try:
            loops.deepspeed().initialize(**{"model": _net(), "config": loops.config(stage), **given})
        except ConfigError as error:
            wrong += [] if says in str(error) else [str(error)]
        else:
            wrong.append(f"no error: {says}")
    return wrong


def test_wrong_arguments(pool: Pool) -> None:
    """Each is one error at every stage, with what was given and what is expected."""
    assert pool.run(loops.at_every_stage, _wrong_arguments, world=1) == [[[], [], [], []]]


def _sharded_by_torch(group: dist.ProcessGroup) -> str:
    net = _net()
    fully_shard(net)
    try:
        loops.deepspeed().initialize(model=net, config=loops.config(2))
    except ConfigError as error:
        return str(error)
    return ""


def test_a_model_that_torch_shards(pool: Pool) -> None:
    """FSDP2's parameters are DTensors, which the engine would shard again."""
    [message] = pool.run(_sharded_by_torch, world=1)
    assert message.startswith("parameter 'weight' is a DTensor")


def _trained_by_names(group: dist.ProcessGroup, stage: int) -> bool:
    """Whether parameters with their names train as those without."""
    found = []
    for form in (_without_names, _with_names, _with_names_in_a_group):
        net = _net()
        engine, *_ = loops.deepspeed().initialize(model=net, model_parameters=form(net), config=loops.config(stage))
        loss = engine(torch.ones(2, 5)).square().mean()
        engine.backward(loss)
        engine.step()
        engine.backward(engine(torch.ones(2, 5)).square().mean())
        engine.step()
        found.append(engine(torch.ones(2, 5)).square().mean().item())
        engine.destroy()
    return len(set(found)) == 1


def _without_names(net: nn.Module) -> Any:
    return net.parameters()


def _with_names(net: nn.Module) -> Any:
    return net.named_parameters()


def _with_names_in_a_group(net: nn.Module) -> Any:
    return [{"params": net.named_parameters()}]


def test_parameters_with_names(pool: Pool) -> None:
    """As torch's optimizers, and so DeepSpeed, take them."""
    assert pool.run(loops.at_every_stage, _trained_by_names, world=_WORLD) == [[True] * 4] * _WORLD


def _wrong_calls(group: dist.ProcessGroup, stage: int, folder: str) -> list[str]:
    """The message of each."""
    engine, *_ = loops.deepspeed().initialize(model=_net(), config=loops.config(stage))
    calls: list[Callable[[], Any]] = [
        lambda: engine.set_train_micro_batch_size(0),
        lambda: engine.set_train_micro_batch_size("4"),
        lambda: engine.set_train_batch_size("8"),
        lambda: engine.save_checkpoint(folder, client_state=[1]),
    ]
    messages = []
    for call in calls:
        try:
            messages.append(f"no error: {call()}")
        except (ValueError, CheckpointError) as error:
            messages.append(str(error))
    engine.destroy()
    return messages


def test_wrong_calls(pool: Pool, tmp_path: Path) -> None:
    """The error is of the call, and not of a later one."""
    [[*_, messages], *_] = pool.run(loops.at_every_stage, _wrong_calls, str(tmp_path), world=_WORLD)
    assert messages == [
        "micro_batch_size must be a whole number of at least 1, got 0",
        "micro_batch_size must be a whole number of at least 1, got '4'",
        "train_batch_size '8' is no multiple of 8, a micro-step's samples",
        "client_state must be a dict, got list; give {'name': value}",
    ]


def _path_without_a_folder(group: dist.ProcessGroup, path: str) -> str:
    zero = {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": path}}
    try:
        loops.deepspeed().initialize(model=_net(), config=loops.config(2, zero_optimization=zero))
    except ConfigError as error:
        return str(error)
    return ""


def test_an_nvme_path_that_cannot_be_made(pool: Pool, tmp_path: Path) -> None:
    """The error names the key."""
    (tmp_path / "file").write_text("")
    [message] = pool.run(_path_without_a_folder, str(tmp_path / "file" / "below"), world=1)
    assert message.startswith("zero_optimization.offload_optimizer.nvme_path: cannot make the folder ")


def test_states_to_offload() -> None:
    """A script can name them."""
    kinds = loops.deepspeed().runtime.zero.offload_config.OffloadStateTypeEnum
    assert [kind.value for kind in kinds] == list(kinds.__members__)
    assert kinds.optim_states == "optim_states"
