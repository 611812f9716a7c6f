"""Training loops as DeepSpeed's users write them, over the names of the stand-in; each runs on every rank."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.overrides
import torch.utils._python_dispatch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from zerobench.compat import activation

STAGES = (0, 1, 2, 3)


def deepspeed(device: str = "cpu") -> Any:
    """The stand-in, on a device."""
    os.environ["DS_ACCELERATOR"] = device
    activation.activate()
    import deepspeed

    return deepspeed


def model() -> nn.Sequential:
    """A small model, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))


def data() -> Dataset[Any]:
    """48 samples."""
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(48, 5, generator=draw), torch.randn(48, 3, generator=draw))


def config(stage: int, **keys: Any) -> dict[str, Any]:
    """A configuration with keys of each of the three lists, two micro-steps of two samples on four ranks."""
    zero = {"stage": stage, "contiguous_gradients": True, "stage3_param_persistence_threshold": 0, "chunk_size": 32}
    return {
        "train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "steps_per_print": 1000,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 3}},
        "zero_optimization": zero,
        "wall_clock_breakdown": False,
        **keys,
    }


def masters(module: nn.Module) -> Tensor:
    """All master weights, whole."""
    read = deepspeed().utils.safe_get_full_fp32_param
    return torch.cat([read(p).flatten() for p in module.parameters()])


def loss(engine: Any, batch: Any) -> Tensor:
    """The mean squared error of a batch."""
    x, y = batch
    return nn.functional.mse_loss(engine(x.to(next(engine.parameters()).dtype)).float(), y)


def tutorial(group: dist.ProcessGroup, stage: int, type_: str = "AdamW") -> list[Tensor]:
    """DeepSpeed's tutorial: arguments, training_data, and ``step()`` after each backward. The masters of each step."""
    ds = deepspeed()
    args = ds.add_config_arguments(argparse.ArgumentParser()).parse_args(["--deepspeed"])
    net, states = model(), []
    engine, _, loader, _ = ds.initialize(
        args=args,
        model=net,
        model_parameters=net.parameters(),
        training_data=data(),
        config=config(stage, optimizer={"type": type_, "params": {"lr": 1e-2}}),
    )
    assert engine.train_batch_size() == 16
    assert engine.train_micro_batch_size_per_gpu() == 2
    assert len(loader) == loader.len == 6
    for _ in range(2):
        for batch in loader:
            engine.backward(loss(engine, batch))
            engine.step()
            if engine.was_step_applied():
                states.append(masters(net))
    assert (engine.global_steps, engine.global_samples, engine.micro_steps) == (6, 96, 12)
    engine.destroy()
    engine.destroy()
    return states


def declared(group: dist.ProcessGroup, stage: int) -> list[Tensor]:
    """As accelerate calls it: the boundary declared, the loss scaled by the caller, one ``step()``."""
    net, states = model(), []
    engine, _, loader, _ = deepspeed().initialize(model=net, training_data=data(), config_params=config(stage))
    for _ in range(2):
        for number, batch in enumerate(loader):
            engine.set_gradient_accumulation_boundary(is_boundary=number % 2 == 1)
            engine.backward(loss(engine, batch) / 2, scale_wrt_gas=False)
            if number % 2 == 1:
                engine.step()
                engine.zero_grad()
                states.append(masters(net))
    engine.destroy()
    return states


def clients(group: dist.ProcessGroup, stage: int, kind: str) -> list[Tensor]:
    """The optimizer of the configuration given by the client in several forms, with a schedule of its own."""
    ds, net, states = deepspeed(), model(), []
    makes: dict[str, Callable[[Any], Any]] = {
        "torch": partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.0),
        "cpu-adam": partial(ds.ops.adam.DeepSpeedCPUAdam, lr=1e-2),
        "fused-adam": partial(ds.ops.adam.FusedAdam, lr=1e-2),
        "lion": partial(ds.ops.lion.DeepSpeedCPULion, lr=1e-2),
        "fused-lion": partial(ds.ops.lion.FusedLion, lr=1e-2),
    }
    make = makes[kind.removesuffix("-callable")]
    keys = {key: value for key, value in config(stage).items() if key not in ("optimizer", "scheduler")}
    engine, optimizer, loader, schedule = ds.initialize(
        model=net,
        optimizer=make if kind.endswith("-callable") else make(net.parameters()),
        lr_scheduler=partial(ds.runtime.lr_schedules.WarmupLR, warmup_max_lr=1e-2, warmup_num_steps=3),
        training_data=data(),
        config=keys,
    )
    for _ in range(2):
        for batch in loader:
            engine.backward(loss(engine, batch))
            engine.step()
            if engine.was_step_applied():
                states.append(masters(net))
    assert schedule.get_last_lr() == engine.get_lr() == [group["lr"] for group in optimizer.param_groups]
    engine.destroy()
    return states


def interrupted(group: dist.ProcessGroup, stage: int, folder: str) -> list[Tensor]:
    """The tutorial with a checkpoint after three steps, loaded by an engine of another stage."""
    ds, states = deepspeed(), []
    for part in range(2):
        net = model() if part == 0 else nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
        other = stage if part == 0 else 3 - stage
        engine, _, loader, _ = ds.initialize(model=net, training_data=data(), config=config(other))
        if part == 1:
            path, state = engine.load_checkpoint(folder)
            assert (Path(path).name, state) == ("global_step3", {"epoch": 1})
        for batch in loader:
            engine.backward(loss(engine, batch))
            engine.step()
            if engine.was_step_applied():
                states.append(masters(net))
        if part == 0:
            engine.save_checkpoint(folder, client_state={"epoch": 1})
        engine.destroy()
    return states


def overflowing(group: dist.ProcessGroup, stage: int) -> list[Any]:
    """fp16 with an overflow on one rank in the second of three steps: what a script prints."""
    fp16 = {"enabled": True, "initial_scale_power": 4, "hysteresis": 1}
    net = model()
    keys = config(stage, fp16=fp16, gradient_accumulation_steps=1, train_batch_size=8)
    engine, optimizer, _, _ = deepspeed().initialize(model=net, config=keys)
    seen: list[Any] = []
    for step in range(3):
        x = torch.full((2, 5), math.inf if (step, dist.get_rank()) == (1, 1) else 1.0, dtype=torch.float16)
        engine.backward(engine(x).float().sum())
        engine.step()
        seen.append((optimizer.overflow, engine.was_step_applied(), engine.skipped_steps, engine.loss_scale()))
    seen.append((engine.global_steps, engine.get_lr()))
    engine.destroy()
    return seen


def without_sync(group: dist.ProcessGroup, stage: int) -> Tensor:
    """Two backwards in no_sync(), the third one outside of it, and one step."""
    net = model()
    keys = config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    engine, _, loader, _ = deepspeed().initialize(model=net, training_data=data(), config=keys)
    batches = list(loader)[:3]
    with engine.no_sync():
        for batch in batches[:2]:
            engine.backward(loss(engine, batch) / 4)
    engine.backward(loss(engine, batches[2]) / 4)
    engine.step()
    after = masters(net)
    engine.destroy()
    return after


def twice(group: dist.ProcessGroup, stage: int, steps: int, device: str, managed: bool) -> Tensor:
    """Two backwards before each step(), as in DeepSpeed's GAN tutorial."""
    net = model()
    keys = config(stage, gradient_accumulation_steps=steps, train_batch_size=8 * steps)
    keys["zero_optimization"] |= {"offload_optimizer": {"device": device}} if stage else {}
    keys |= {} if managed else {"managed_gradient_accumulation": False}
    engine, _, loader, _ = deepspeed().initialize(model=net, training_data=data(), config=keys)
    for number, batch in enumerate(loader):
        engine.backward(loss(engine, batch))
        engine.backward(loss(engine, batch) * 0.5)
        if managed or number % steps == steps - 1:
            engine.step()
    after = masters(net)
    engine.destroy()
    return after


def zeroed(group: dist.ProcessGroup, stage: int, steps: int, device: str, zeroing: str | None) -> Tensor:
    """The gradients of each step are zeroed after its last backward, and that one is made again; without zeroing, the
    backwards before the last one give zeros."""
    net = model()
    keys = config(stage, gradient_accumulation_steps=steps, train_batch_size=8 * steps)
    keys["zero_optimization"] |= {"offload_optimizer": {"device": device}} if stage else {}
    engine, optimizer, loader, _ = deepspeed().initialize(model=net, training_data=data(), config=keys)
    for number, batch in enumerate(loader):
        last = number % steps == steps - 1
        engine.backward(loss(engine, batch) * (1.0 if last or zeroing else 0.0))
        if last and zeroing:
            {"engine": engine, "optimizer": optimizer}[zeroing].zero_grad()
            engine.backward(loss(engine, batch))
        engine.step()
    after = masters(net)
    engine.destroy()
    return after


def ordered(group: dist.ProcessGroup, stage: int, steps: int, orders: list[str], managed: bool) -> Tensor:
    """Micro-steps of several backwards (b) with ``zero_grad()`` (z) among them, each in one of the orders; if the
    accumulation is not ``managed``, the backwards that count alone, at the end of their step."""
    net = model()
    keys = config(stage, gradient_accumulation_steps=steps, train_batch_size=8 * steps)
    keys |= {} if managed else {"managed_gradient_accumulation": False}
    engine, _, loader, _ = deepspeed().initialize(model=net, training_data=data(), config=keys)
    counted: list[Any] = []
    for number, batch in enumerate(loader):
        last = number % steps == steps - 1
        for call in orders[number % len(orders)]:
            if managed:
                engine.backward(loss(engine, batch)) if call == "b" else engine.zero_grad()
            elif call == "b":
                counted.append(batch)
            elif last:
                counted.clear()
        if managed:
            engine.step()
        elif last:
            for each in counted:
                engine.backward(loss(engine, each))
            engine.step()
            counted.clear()
    after = masters(net)
    engine.destroy()
    return after


def evaluating(group: dist.ProcessGroup, stage: int) -> tuple[Tensor, Tensor]:
    """An engine without an optimizer, and one in an evaluation between steps; the models' outputs."""
    ds, x = deepspeed(), torch.ones(2, 5)
    keys = {key: value for key, value in config(stage).items() if key not in ("optimizer", "scheduler")}
    engine, optimizer, _, schedule = ds.initialize(model=model(), config=keys)
    assert (optimizer is None) == (stage < 3)  # there it owns the hooks, as in DeepSpeed
    assert schedule is None
    engine.eval()
    with torch.no_grad():
        plain = engine(x)
    engine.destroy()
    engine, _, loader, _ = ds.initialize(model=model(), training_data=data(), config=config(stage))
    for batch in loader:
        engine.train()
        engine.backward(loss(engine, batch))
        engine.step()
        engine.eval()
        with torch.no_grad():
            between = engine(x)
    engine.destroy()
    return plain, between


def edited(group: dist.ProcessGroup, stage: int) -> bool:
    """States set whole and in parts, and read again."""
    ds, net = deepspeed(), model()
    utils = ds.utils
    engine, _, loader, _ = ds.initialize(model=net, training_data=data(), config=config(stage))
    for batch in list(loader)[:2]:
        engine.backward(loss(engine, batch))
        engine.step()
    right = True
    for parameter in net.parameters():
        value = torch.arange(float(parameter.numel())).view(parameter.shape)
        utils.safe_set_full_fp32_param(parameter, value)
        utils.safe_set_full_optimizer_state(parameter, value + 1, "exp_avg")
        right &= torch.equal(utils.safe_get_full_fp32_param(parameter), value)
        right &= torch.equal(utils.safe_get_full_optimizer_state(parameter, "exp_avg"), value + 1)
        if stage == 3:
            own = utils.safe_get_local_fp32_param(parameter)
            utils.safe_set_local_fp32_param(parameter, own + 2)
            right &= torch.equal(utils.safe_get_full_fp32_param(parameter), value + 2)
        with ds.zero.GatheredParameters(parameter, modifier_rank=0):
            if dist.get_rank() == 0:
                nn.init.constant_(parameter, 3.0)
        right &= bool((utils.safe_get_full_fp32_param(parameter) == 3).all())
    batch = next(iter(loader))
    engine.backward(loss(engine, batch))
    for parameter in net.parameters():
        utils.safe_set_full_grad(parameter, torch.full_like(parameter, 0.25, requires_grad=False))
        right &= bool((utils.safe_get_full_grad(parameter) == 0.25).all())
    engine.destroy()
    return right


def begun(stage: int, **keys: Any) -> tuple[Any, Any, nn.Sequential]:
    """The stand-in, an engine of one micro-step without clipping, and its model."""
    ds, net = deepspeed(), model()
    keys = {"gradient_accumulation_steps": 1, "train_batch_size": 8, "gradient_clipping": 0.0, **keys}
    engine, *_ = ds.initialize(model=net, training_data=data(), config=config(stage, **keys))
    return ds, engine, net


def trained(engine: Any, net: nn.Module, micro_steps: int, step: Callable[[], object] | None = None) -> Tensor:
    """The masters after as many batches; ``step`` replaces the engine's."""
    for batch in itertools.islice(engine.training_dataloader, micro_steps):
        engine.backward(loss(engine, batch))
        (step or engine.step)()
    return masters(net)


def at_every_stage(group: dist.ProcessGroup, loop: Callable[..., Any], *given: Any) -> list[Any]:
    """The results of a loop at the four stages; each leaves what is one for the process as it was."""
    before, results = _of_process(), []
    for stage in STAGES:
        results.append(loop(group, stage, *given))
        assert _of_process() == before, f"at stage {stage} the loop left the process otherwise than it found it"
    return results


def _of_process() -> list[object]:
    """What torch has once for a process or thread: whether it compiles, records gradients and casts, and its modes."""
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    return [
        compiler is None or compiler._stance.stance == "default",
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        torch.overrides._get_current_function_mode_stack(),  # type: ignore[no-untyped-call]
    ]
