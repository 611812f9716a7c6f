"""Loops with calls of DeepSpeed's engine that few scripts have; each runs on every rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.suites.compat import loops


def coalesced(group: dist.ProcessGroup, stage: int, block: bool) -> Tensor:
    """Two backwards in a block of coalesce_grad_reduction() and one step(), or the same by declarations."""
    _, engine, net = loops.begun(stage)
    batches = list(engine.training_dataloader)
    for first, second in (batches[:2], batches[2:4]):
        if block:
            with engine.coalesce_grad_reduction():
                engine.backward(loops.loss(engine, first))
                engine.backward(loops.loss(engine, second))
        else:
            engine.set_gradient_accumulation_boundary(False)
            engine.backward(loops.loss(engine, first))
            engine.set_gradient_accumulation_boundary(True)
            engine.backward(loops.loss(engine, second))
        engine.step()
    if not block:
        engine.set_gradient_accumulation_boundary(None)
    engine.backward(loops.loss(engine, batches[4]))
    engine.step()
    assert (engine.global_steps, engine.micro_steps) == (3, 5)
    after = loops.masters(net)
    engine.destroy()
    return after


def autocast(group: dist.ProcessGroup, stage: int) -> tuple[Tensor, list[torch.dtype]]:
    """Three steps under the section torch_autocast; the masters, and the dtypes of an output and a parameter."""
    _, engine, net = loops.begun(stage, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    after = loops.trained(engine, net, 3)
    seen = [engine(torch.ones(2, 5)).dtype, next(net.parameters()).dtype]
    engine.destroy()
    return after, seen


def outer_autocast(group: dist.ProcessGroup, stage: int) -> tuple[Tensor, torch.dtype]:
    """Three steps in the caller's torch.autocast, without the section; the masters, and an output's dtype."""
    _, engine, net = loops.begun(stage)
    with torch.autocast("cpu", torch.bfloat16):
        after = loops.trained(engine, net, 3)
        found = engine(torch.ones(2, 5)).dtype
    engine.destroy()
    return after, found


def reduced_by_the_caller(group: dist.ProcessGroup, stage: int) -> tuple[Tensor, str]:
    """Steps with allreduce_gradients() after each backward; the masters, and the error of a step without it."""
    _, engine, net = loops.begun(stage)
    engine.enable_backward_allreduce = False
    for batch in itertools.islice(engine.training_dataloader, 2):
        engine.backward(loops.loss(engine, batch))
        engine.allreduce_gradients(bucket_size=1000)
        engine.step()
    after = loops.masters(net)
    engine.backward(loops.loss(engine, batch))
    with pytest.raises(RuntimeError) as error:
        engine.step()
    engine.destroy()
    return after, str(error.value)


def norm_and_samples(group: dist.ProcessGroup, stage: int, folder: str) -> tuple[float, list[int]]:
    """The norm as a number, and the samples before and after a checkpoint is loaded."""
    _, engine, net = loops.begun(stage)
    assert engine.optimizer._global_grad_norm == 0.0
    loops.trained(engine, net, 2)
    norm, samples = engine.get_global_grad_norm().item(), [engine.global_samples]
    assert engine.optimizer._global_grad_norm.item() == norm
    engine.save_checkpoint(folder)
    engine.destroy()
    _, engine, _ = loops.begun(stage)
    engine.load_checkpoint(folder)
    samples.append(engine.global_samples)
    engine.destroy()
    return norm, samples


def groups_without_parameters(group: dist.ProcessGroup, stage: int) -> list[Any]:
    """The rates of an engine that was given such groups, by a client's optimizer and by the configuration's."""
    ds, rates = loops.deepspeed(), []
    for by_client in (True, False):
        net = loops.model()
        last = {"params": list(net.parameters()), "lr": 0.25}
        given: list[dict[str, Any]] = [{"params": []}, {"params": iter(()), "lr": 0.75}, last]
        client = torch.optim.AdamW(given, lr=0.5) if by_client else None
        section = {} if by_client else {"optimizer": {"type": "AdamW", "params": {"lr": 0.5}}}
        config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, **section}
        make = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step))
        given_as: dict[str, Any] = {"optimizer": client} if by_client else {"model_parameters": given}
        engine, optimizer, _, _ = ds.initialize(
            model=net, lr_scheduler=make, config=config, training_data=loops.data(), **given_as
        )
        loops.trained(engine, net, 1)
        rates += [engine.get_lr(), len(optimizer.param_groups)]
        if client is not None:
            rates.append(len(client.param_groups))
        engine.destroy()
    return rates


def rates_of_the_clients_own_schedule(group: dist.ProcessGroup, stage: int) -> list[Any]:
    """The rates under a schedule that the caller made for an optimizer with an empty group, and did not pass on."""
    net = loops.model()
    client = torch.optim.AdamW([{"params": [], "lr": 0.75}, {"params": list(net.parameters()), "lr": 0.25}])
    schedule = torch.optim.lr_scheduler.LambdaLR(client, lambda step: 1 / (1 + step))
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}}
    engine, *_ = loops.deepspeed().initialize(model=net, optimizer=client, config=config, training_data=loops.data())
    loops.trained(engine, net, 1)
    schedule.step()
    rates = [schedule.get_last_lr(), engine.get_lr()]
    engine.destroy()
    return rates


def norm_of_a_skipped_step(group: dist.ProcessGroup, stage: int) -> float:
    """The norm after a step whose scaled gradients are not finite."""
    _, engine, _ = loops.begun(stage, fp16={"enabled": True, "initial_scale_power": 60})
    engine.backward(loops.loss(engine, next(iter(engine.training_dataloader))))
    engine.step()
    norm = engine.get_global_grad_norm().item()
    assert engine._global_grad_norm.item() == norm
    engine.destroy()
    return float(norm)


def skipped_by_the_sum_of_two(group: dist.ProcessGroup, stage: int) -> list[int]:
    """Skipped steps of two micro-steps at a scale of 2 ** 15, if the gradient of each loss is 1.5, and if it is 2."""
    found = []
    for slope in (1.5, 2.0):
        fp16 = {"enabled": True, "initial_scale_power": 15, "hysteresis": 1}
        keys = loops.config(stage, fp16=fp16, scheduler=None, gradient_clipping=0.0)
        engine, *_ = loops.deepspeed().initialize(model=nn.Linear(1, 1, bias=False), config=keys)
        for _ in range(2):
            engine.backward(slope * engine(torch.ones(1, 1, dtype=torch.float16)).float().sum())
            engine.step()
        found.append(engine.skipped_steps)
        engine.destroy()
    return found


def module_states(group: dist.ProcessGroup, stage: int) -> bool:
    """load_module_state_dict(): rank 0's whole weights, the names that may be missing, and a function."""
    ds, engine, net = loops.begun(stage)
    given = {name: torch.full_like(p, 1.5, device="cpu") for name, p in loops.model().state_dict().items()}
    engine.load_module_state_dict({"module": given}, fetch_z3_params=True)
    right = bool((loops.masters(net) == 1.5).all())
    missing = [given.popitem()[0]]
    engine.load_module_state_dict({"module": given}, allowed_missing_keys=missing)
    with pytest.raises(RuntimeError, match="Missing key"):
        engine.load_module_state_dict({"module": given})
    engine.load_module_state_dict({"module": given}, custom_load_fn=lambda src, dst: dst[0].bias.data.fill_(len(src)))
    with ds.zero.GatheredParameters(net.get_parameter("0.bias")):
        right &= bool((net.get_parameter("0.bias") == len(given)).all())
    engine.destroy()
    return right


def another_batch(group: dist.ProcessGroup, stage: int) -> list[int]:
    """The steps after each micro-step, if the batch is doubled after the first step."""
    _, engine, _ = loops.begun(stage)
    steps = []
    for batch in itertools.islice(engine.training_dataloader, 5):
        engine.backward(loops.loss(engine, batch))
        engine.step()
        steps.append(engine.global_steps)
        if len(steps) == 1:
            engine.set_train_batch_size(16)
    engine.destroy()
    return steps


def another_batch_under_offload(group: dist.ProcessGroup, stage: int) -> tuple[str, list[Tensor]]:
    """The error of more micro-steps than one, if the engine began with one; and the masters of an engine that began
    with two of them, with one, two and three, on the device and under offload."""
    keys = loops.config(stage)["zero_optimization"] | {"offload_optimizer": {"device": "cpu"}}
    _, engine, _ = loops.begun(stage, zero_optimization=keys)
    with pytest.raises(RuntimeError) as caught:
        engine.set_train_batch_size(16)
    engine.set_train_batch_size(8)
    engine.destroy()
    masters = []
    for given in ({}, {"zero_optimization": keys}):
        _, engine, net = loops.begun(stage, gradient_accumulation_steps=2, train_batch_size=16, **given)
        sizes = iter((8, 16, 24))
        for batch in engine.training_dataloader:
            if engine.micro_steps in (0, 1, 2):  # each is a boundary
                engine.set_train_batch_size(next(sizes))
            engine.backward(loops.loss(engine, batch))
            engine.step()
        masters.append(loops.masters(net))
        engine.destroy()
    return str(caught.value), masters


def schedule_of_the_client(group: dist.ProcessGroup, stage: int, kind: str) -> tuple[Tensor, list[float]]:
    """Steps of a schedule that the engine knows, or that the caller makes of its own optimizer and steps itself."""
    ds, net = loops.deepspeed(), loops.model()
    make: Any = ds.ops.adam.FusedAdam if kind == "fused-adam" else torch.optim.AdamW
    optimizer = make(net.parameters(), lr=1e-2, weight_decay=0.0)
    keys = {key: value for key, value in loops.config(stage).items() if key not in ("optimizer", "scheduler")}
    given = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    schedule = None if kind == "known" else given(optimizer)
    engine, *_ = ds.initialize(
        model=net,
        optimizer=optimizer,
        lr_scheduler=None if schedule else given,
        training_data=loops.data(),
        config=keys,
    )
    for batch in engine.training_dataloader:
        engine.backward(loops.loss(engine, batch))
        engine.step()
        if schedule and engine.was_step_applied():
            schedule.step()
    after, rates = loops.masters(net), [*engine.get_lr(), optimizer.param_groups[0]["lr"]]
    engine.destroy()
    return after, rates


def optimizer_classes(group: dist.ProcessGroup, stage: int) -> tuple[bool, bool]:
    """Whether the optimizer is of DeepSpeed's class for stages 1 and 2, and of that for stage 3."""
    ds, engine, _ = loops.begun(stage)
    zero = ds.runtime.zero
    classes = zero.stage_1_and_2.DeepSpeedZeroOptimizer, zero.stage3.DeepSpeedZeroOptimizer_Stage3
    found = isinstance(engine.optimizer, classes[0]), isinstance(engine.optimizer, classes[1])
    engine.destroy()
    return found


def gradients_set(group: dist.ProcessGroup, stage: int, offload: dict[str, Any] | None) -> tuple[bool, Tensor]:
    """Gradients set by a function and then in parts, read whole; and the masters after the step."""
    zero = {**loops.config(stage)["zero_optimization"], **({"offload_optimizer": offload} if offload else {})}
    ds, engine, net = loops.begun(stage, zero_optimization=zero, gradient_clipping=1.0)
    utils, parameters = ds.utils, list(net.parameters())
    engine.backward(loops.loss(engine, next(iter(engine.training_dataloader))))
    utils.safe_update_full_grad_vectorized(parameters, lambda gradient, p: torch.full_like(gradient, p.dim()))
    right = all(bool((utils.safe_get_full_grad(p) == p.dim()).all()) for p in parameters)
    for p in parameters if stage == 3 else []:
        utils.safe_set_local_grad(p, utils.safe_get_local_grad(p) * 2)
        right &= bool((utils.safe_get_full_grad(p) == 2 * p.dim()).all())
    for p in parameters:
        utils.safe_set_full_grad(p, torch.full_like(utils.safe_get_full_grad(p), 0.5 * p.dim()))
    engine.step()
    after = loops.masters(net)
    engine.destroy()
    return right, after


def in_a_new_folder(group: dist.ProcessGroup, folder: str) -> list[str]:
    """Optimizer states in files below a folder that nobody has made; its name after a step."""
    _, engine, _ = loops.begun(
        3,
        zero_optimization={
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": f"{folder}/local_nvme", "buffer_count": 4},
        },
    )
    engine.backward(loops.loss(engine, next(iter(engine.training_dataloader))))
    engine.step()
    engine.destroy()
    return [path.name for path in Path(folder).iterdir()]


def misused(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The errors of calls that would train something else, or nothing."""
    _, engine, net = loops.begun(stage)
    calls: list[Callable[[], object]] = [
        lambda: engine.step(lr_kwargs={"metrics": 1.0}),
        lambda: engine.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
        lambda: engine.backward(engine(torch.ones(2, 5)).mean().detach()),
        lambda: engine.backward(engine(torch.ones(2, 5))),
    ]
    if stage < 3:  # there a conversion of parameters that are whole at the moment is undone when they are resharded
        calls.append(lambda: (net.half(), engine.step()))
    seen = []
    for call in calls:
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        seen.append(str(caught.value))
    engine.destroy()
    return seen


def stepped_as_lightning(group: dist.ProcessGroup, stage: int, lightning: bool) -> Tensor:
    """The masters after two steps of the engine and its schedule, or of the optimizer and a schedule taken over.

    Lightning steps the schedule itself and asks for a state dict of the optimizer; Fabric steps the optimizer.
    """
    _, engine, net = loops.begun(stage)
    schedule = engine.lr_scheduler

    def step() -> None:
        engine.optimizer.step()
        schedule.step()

    if lightning:
        engine.lr_scheduler = None
    after = loops.trained(engine, net, 2, step if lightning else None)
    assert (engine.global_steps, engine.is_compiled) == (2, False)
    engine.compile()
    assert engine.is_compiled
    assert engine.optimizer.state_dict()["param_groups"]
    if stage == 3:
        parameter: Any = next(iter(net.parameters()))
        assert parameter.partition_numel() == -(-parameter.numel() // dist.get_world_size())
    engine.destroy()
    return after
