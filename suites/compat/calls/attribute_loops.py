"""Loops with attributes of DeepSpeed's engine and optimizer that scripts read and set; each runs on every rank."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zerobench.suites.compat import loops


def _engine(stage: int, net: nn.Module, **given: Any) -> Any:
    """An engine with two micro-steps of two samples in a step, of four ranks."""
    config = loops.config(stage, gradient_clipping=0.5)
    if "optimizer" in given:
        config.pop("optimizer")
        config.pop("scheduler")
    return loops.deepspeed().initialize(model=net, config=config, training_data=loops.data(), **given)


def what_was_given(group: dist.ProcessGroup, stage: int) -> list[Any]:
    """The arguments of initialize() and the names of parameters; each is True if it is as in DeepSpeed."""
    net = loops.model()
    client = torch.optim.RMSprop(net.parameters(), lr=0.25, momentum=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(client, 0.5)
    engine, optimizer, loader, _ = _engine(stage, net, optimizer=client, lr_scheduler=schedule)
    names = {name for name, _ in net.named_parameters()}
    found = [
        engine.client_optimizer is client and engine.client_lr_scheduler is schedule,
        engine.basic_optimizer is client and optimizer.optimizer is client,
        engine.training_data is not None and engine.training_dataloader is loader,
        set(engine.param_names.values()) == set(optimizer.param_names.values()) == names,
        (engine.optimizer_name(), engine.get_mom(), optimizer.get_lr()) == ("RMSprop", [0.5], 0.25),
        (optimizer.clip_grad, optimizer.dtype, optimizer.dynamic_loss_scale) == (0.5, torch.float32, False),
        (optimizer.loss_scaler.cur_scale, optimizer.loss_scaler.loss_scale, optimizer.loss_scaler.dynamic)
        == (1, 1, False),
        (engine.gradient_average, engine.losses, engine.scale_wrt_gas, engine.gate_modules) == (True, None, None, []),
        engine.save_non_zero_checkpoint == (dist.get_rank() == 0),
    ]
    optimizer.set_lr(0.125)
    found.append(engine.get_lr() == [0.125] and client.param_groups[0]["lr"] == 0.125)
    engine.destroy()
    return found


def loss_scaler(group: dist.ProcessGroup, stage: int) -> tuple[list[Any], float, str]:
    """A dynamic scaler after a step that overflows and a good one; a scale that the script sets, and too late."""
    fp16 = {"enabled": True, "initial_scale_power": 5, "loss_scale_window": 7, "hysteresis": 3, "min_loss_scale": 2}
    engine, optimizer, *_ = loops.deepspeed().initialize(
        model=loops.model(),
        config=loops.config(stage, fp16=fp16, gradient_accumulation_steps=1, train_batch_size=8),
    )
    scaler = optimizer.loss_scaler
    for factor in (1e9, 1.0):
        engine.backward(engine(torch.ones(2, 5).half()).float().sum() * factor)
        engine.step()
    names = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
    found = [getattr(scaler, name) for name in (*names, "scale_window", "min_scale", "delayed_shift", "scale_factor")]
    scaler.cur_scale = 8
    engine.backward(engine(torch.ones(2, 5).half()).float().sum())
    try:
        scaler.cur_scale = 4
    except AssertionError as error:
        text = str(error)
    engine.step()
    after = optimizer.cur_scale
    engine.destroy()
    return found, after, text


def overflow_before_the_step(group: dist.ProcessGroup, stage: int) -> list[Any]:
    """The classes of a dynamic scaler, and whether there is an overflow: on one rank, before and after the step."""
    scalers = importlib.import_module("deepspeed.runtime.fp16.loss_scaler")
    engine, optimizer, *_ = loops.deepspeed().initialize(
        model=loops.model(),
        config=loops.config(stage, fp16={"enabled": True}, gradient_accumulation_steps=1, train_batch_size=8),
    )
    kinds = (scalers.DynamicLossScaler, scalers.LossScalerBase, scalers.LossScaler)
    found: list[Any] = [[isinstance(optimizer.loss_scaler, kind) for kind in kinds], optimizer.has_overflow()]
    for factor in (float("inf") if dist.get_rank() == 1 else 0.0, 0.0):
        engine.backward(engine(torch.ones(2, 5).half()).float().sum() * factor)
        found += [optimizer.has_overflow(), optimizer.has_overflow(partition_gradients=False)]
        engine.step()
        found.append(optimizer.overflow)
    optimizer.refresh_fp32_params()
    engine.destroy()
    return found


def refused(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The errors of attributes that the engine does not have, and of a step of the optimizer inside."""
    engine, optimizer, *_ = _engine(stage, loops.model())
    errors = []
    for name in ("checkpoint_engine", "engine_timers", "loaded_checkpoint_dp_world_size"):
        try:
            getattr(engine, name)
        except AttributeError as error:
            errors.append(str(error))
    try:
        optimizer.optimizer.step()
    except RuntimeError as error:
        errors.append(str(error))
    for name in ("fp32_partitioned_groups_flat", "override_loss_scale"):
        assert not hasattr(optimizer, name)
        try:
            getattr(optimizer, name)
        except AttributeError as error:
            errors.append(str(error))
    engine.destroy()
    return errors


def counters(group: dist.ProcessGroup, stage: int) -> list[Any]:
    """Counters that a script restores; then the micro-steps of steps, and an error within a step."""
    engine, _, loader, _ = _engine(stage, loops.model())
    engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.global_samples = 10, 21, 3, 160
    found: list[Any] = [engine.skipped_steps]
    for batch in itertools.islice(loader, 4):
        engine.backward(loops.loss(engine, batch))
        engine.step()
        found.append((engine.global_steps, engine.micro_steps, engine.global_samples))
    engine.backward(loops.loss(engine, batch))
    engine.step()
    found.append(engine.is_gradient_accumulation_boundary())
    try:
        engine.backward(loops.loss(engine, batch))
        engine.micro_steps += 1
    except RuntimeError as error:
        found.append(str(error))
    engine.destroy()
    return found
