"""The caller's own: a schedule beside the configuration's, the hooks that TRL takes off, and random numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

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
