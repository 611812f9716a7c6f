"""The caller's own: a schedule beside the configuration's, the hooks that TRL takes off, and random numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


def _two_schedules(group: dist.ProcessGroup, stage: int) -> tuple[str, list[float]]:
    """A schedule of the configuration and one of the caller: the class that steps, and its rates."""
    ds = loops.deepspeed()
    schedule = partial(ds.runtime.lr_schedules.OneCycle, cycle_min_lr=1e-3, cycle_max_lr=1e-2, cycle_first_step_size=2)
    config = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}
    engine, _, _, stepped = ds.initialize(model=nn.Linear(5, 5), lr_scheduler=schedule, config=config)
    rates = []
    for _ in range(4):
        rates += [round(each, 9) for each in engine.get_lr()]
        engine.backward(engine(torch.ones(2, 5)).sum())
        engine.step()
    engine.destroy()
    return type(stepped).__name__, rates


def test_the_clients_schedule_comes_first(pool: Pool) -> None:
    """A schedule that the caller gives holds in place of the configuration's, as in DeepSpeed 0.19.8."""
    for stages in pool.run(loops.at_every_stage, _two_schedules, world=_WORLD):
        assert stages == [("OneCycle", [0.001, 0.0055, 0.01, 0.0055])] * 4


def _owner_of_hooks(group: dist.ProcessGroup, stage: int) -> tuple[int, ...] | None:
    """The numbers of parameters that the owner's module has by three names; None below stage 3."""
    engine, optimizer, *_ = loops.deepspeed().initialize(model=nn.Linear(5, 5), config=loops.config(stage))
    owner = getattr(optimizer, "parameter_offload", None)
    found: tuple[int, ...] | None = None
    if owner is not None:
        names = (owner.module.parameters, owner.module.named_parameters, owner.module.ds_external_parameters)
        found = tuple(len(list(each())) for each in names)
    engine.destroy()
    return found


def test_the_owner_of_hooks_has_the_module(pool: Pool) -> None:
    """At stage 3 optimizer.parameter_offload.module has the module's parameters, and no external ones."""
    for stages in pool.run(loops.at_every_stage, _owner_of_hooks, world=_WORLD):
        assert stages == [None, None, None, (2, 2, 0)]


def _drawn(group: dist.ProcessGroup, stage: int, folder: str) -> bool:
    """Whether a load of a checkpoint leaves the numbers that the script draws next."""
    engine, *_ = loops.deepspeed().initialize(model=nn.Linear(5, 5), config=loops.config(stage))
    engine.save_checkpoint(f"{folder}/{stage}")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    engine.load_checkpoint(f"{folder}/{stage}")
    drawn = torch.rand(3)
    engine.destroy()
    return torch.equal(drawn, expected)


def test_random_numbers_after_a_load(pool: Pool, tmp_path: Path) -> None:
    """They are the script's, as in DeepSpeed: Trainer's samplers draw the order of the samples after the load."""
    assert pool.run(loops.at_every_stage, _drawn, str(tmp_path), world=_WORLD) == [[True] * 4] * _WORLD


def _hooked(group: dist.ProcessGroup, stage: int, kind: str) -> list[str]:
    """Two steps of two micro-steps, the first of which overflows; the calls of hooks of optimizers."""
    ds, net, calls = loops.deepspeed(), nn.Linear(5, 5), []
    client = torch.optim.AdamW(net.parameters(), lr=1e-2) if kind == "torch" else None
    if kind == "deepspeed":
        client = ds.ops.adam.DeepSpeedCPUAdam(net.parameters(), lr=1e-2)
    config = loops.config(stage, fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1}, scheduler={})
    engine, returned, *_ = ds.initialize(model=net, optimizer=client, config=config)
    inner = engine.basic_optimizer
    assert client is None or inner is client
    for name, optimizer in (("inner", inner), ("returned", returned)):
        optimizer.register_step_pre_hook(lambda of, args, keys, name=name: calls.append(f"{name} before"))
        optimizer.register_step_post_hook(lambda of, args, keys, name=name: calls.append(f"{name} after"))
    everyones = register_optimizer_step_post_hook(lambda of, args, keys: calls.append("all after"))
    for scale in (1e30, 1, 1, 1):
        engine.backward(engine(torch.ones(2, 5, dtype=torch.half)).float().sum() * scale)
        (engine if scale > 1 else returned).step()
        calls.append("micro-step")
    everyones.remove()
    engine.destroy()
    return calls


@pytest.mark.parametrize("kind", ["torch", "deepspeed", "configured"])
def test_hooks_of_steps(pool: Pool, kind: str) -> None:
    """Hooks of the caller's optimizer and of the returned one run once in each step, those after only if it is applied,
    also if the caller steps the optimizer."""
    before = ["inner before", "returned before"]
    after = ["all after", "inner after", "returned after"]
    expected = ["micro-step", *before, "micro-step", "micro-step", *before, *after, "micro-step"]
    for stages in pool.run(loops.at_every_stage, _hooked, kind, world=_WORLD):
        assert stages == [expected] * 4


def _clamped(group: dist.ProcessGroup, stage: int, by_hook: bool) -> torch.Tensor:
    """Weights that are clamped after each step, by a hook or in the loop; the masters at the end."""
    ds, net = loops.deepspeed(), loops.model()
    client = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def clamp(*_: object) -> None:
        with ds.zero.GatheredParameters(list(net.parameters()), modifier_rank=0, enabled=stage == 3):
            for parameter in net.parameters():
                parameter.data.clamp_(-0.1, 0.1)

    if by_hook:
        client.register_step_post_hook(clamp)
    config = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8, bf16={"enabled": True})
    engine, _, loader, _ = ds.initialize(model=net, optimizer=client, training_data=loops.data(), config=config)
    for batch in loader:
        engine.backward(loops.loss(engine, batch))
        engine.step()
        if not by_hook:
            clamp()
    after = loops.masters(net)
    engine.destroy()
    return after


def test_edits_in_a_hook(pool: Pool) -> None:
    """Edits in a hook after the step are those of an edit after engine.step(), in 16 bits, too."""
    ours = pool.run(loops.at_every_stage, _clamped, True, world=_WORLD)
    theirs = pool.run(loops.at_every_stage, _clamped, False, world=_WORLD)
    for hooked, edited in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(hooked, edited, strict=True))


def _replaced(group: dist.ProcessGroup, stage: int, later: bool) -> str:
    """The error of an optimizer whose step the caller has wrapped, before or after initialize()."""
    ds, net = loops.deepspeed(), nn.Linear(5, 5)
    client = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.optim.lr_scheduler.StepLR(client, 1)  # its wrapper is allowed
    config = loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    if not later:
        client.step = partial(client.step)  # type: ignore[method-assign]
        with pytest.raises(RuntimeError) as caught:
            ds.initialize(model=net, optimizer=client, config=config)
        return str(caught.value)
    engine, *_ = ds.initialize(model=net, optimizer=client, config=config)
    engine.backward(engine(torch.ones(2, 5)).sum())
    client.step = partial(client.step)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError) as caught:
        engine.step()
    engine.destroy()
    return str(caught.value)


@pytest.mark.parametrize("later", [False, True])
def test_a_replaced_step(pool: Pool, later: bool) -> None:
    """The engine would not call it, so it is an error that names the hooks."""
    for stages in pool.run(loops.at_every_stage, _replaced, later, world=_WORLD):
        assert all("use register_step_pre_hook() or register_step_post_hook()" in text for text in stages)
