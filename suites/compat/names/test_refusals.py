"""A refusal gives its reason; names that DeepSpeed's callers compare or inspect are as they expect."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.compat import refused, schedules
from zerobench.compat.activation import SITE, activate
from zerobench.compat.config import resolve
from zerobench.compat.patches.cpu_ranks import PatchesOnImport
from zerobench.engine.errors import ConfigError
from zerobench.ranks import Pool
from zerobench.suites.compat import loops


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (refused.init_inference, "init_inference is not offered: call deepspeed.initialize"),
        (refused.FusedLamb, "it updates whole matrices"),
        (refused.MuonWithAuxAdam, "it updates whole matrices"),
        (refused.MoE, "has no other parallelism"),
        (refused.PipelineModule, "has no other parallelism"),
        (refused.DeepSpeedTransformerLayer, "use the layers of torch or of transformers"),
    ],
)
def test_each_refusal_has_its_reason(call: Callable[[], object], reason: str) -> None:
    """One error, with the name and the reason."""
    with pytest.raises(NotImplementedError, match=reason):
        call()


@pytest.mark.parametrize("name", ["mpu", "mesh_param"])
def test_other_parallelism(name: str) -> None:
    """Arguments of initialize() that would shard the model in another way."""
    with pytest.raises(ConfigError, match=f"{name} is refused: .* has no other parallelism"):
        loops.deepspeed().initialize(model=nn.Linear(2, 2), config={"train_batch_size": 1}, **{name: object()})


def _parts(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The errors of the calls for a rank's part of a parameter."""
    ds, net, one = loops.deepspeed(), nn.Linear(2, 2), torch.zeros(4)
    engine, *_ = ds.initialize(model=net, config=loops.config(stage))
    calls: tuple[Callable[[], object], ...] = (
        lambda: ds.utils.safe_get_local_fp32_param(net.weight),
        lambda: ds.utils.safe_set_local_fp32_param(net.weight, one),
        lambda: ds.utils.safe_get_local_optimizer_state(net.weight, "exp_avg"),
        lambda: ds.utils.safe_set_local_optimizer_state(net.weight, one, "exp_avg"),
        lambda: ds.utils.safe_get_local_grad(net.weight),
        lambda: ds.utils.safe_set_local_grad(net.weight, one),
    )
    errors = [_error_of(call) for call in calls]
    engine.destroy()
    return errors


def _error_of(call: Callable[[], object]) -> str:
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_parts_of_a_parameter_need_stage_3(pool: Pool, stage: int) -> None:
    """As DeepSpeed refuses them: at stage 0 the masters of the ranks would differ after one rank's part was set."""
    for errors in pool.run(_parts, stage, world=4):
        assert all(f"at stage 3 only, and the engine has stage {stage}; use the functions" in each for each in errors)


def _of_the_state(group: dist.ProcessGroup, stage: int) -> list[str]:
    """The errors of uses of an optimizer's state."""
    net = nn.Linear(2, 2)
    client = torch.optim.Adam(net.parameters(), lr=1e-3)
    engine, optimizer, *_ = loops.deepspeed().initialize(model=net, optimizer=client, config=loops.config(stage))
    calls: tuple[Callable[[], object], ...] = (
        optimizer.state.clear,
        client.state.clear,
        lambda: setattr(optimizer, "state", {}),
        lambda: optimizer.state[net.weight],
        lambda: optimizer.state.update({net.weight: {}}),
        lambda: [each.clear() for each in optimizer.state.values()],
        lambda: [each["exp_avg"].zero_() for each in client.state.values()],
    )
    errors = [_error_of(call) for call in calls]
    assert not optimizer.state
    for found in (*optimizer.state.values(), *client.state.values()):  # a loop that moves the state to a device
        for name, value in found.items():
            found[name] = value.cpu()
    engine.destroy()
    return errors


@pytest.mark.parametrize("stage", [0, 3])
def test_the_state_of_an_optimizer(pool: Pool, stage: int) -> None:
    """A client that clears it, to begin with fresh moments, would go on with the old ones."""
    for errors in pool.run(_of_the_state, stage, world=4):
        assert all("read and set it by safe_get_full_optimizer_state() and safe_set" in each for each in errors)


def test_a_long_configuration_in_base64() -> None:
    """It is longer than a file's name may be."""
    config = {"train_batch_size": 4, "a_note": "x" * 500}
    text = base64.urlsafe_b64encode(json.dumps(config).encode()).decode()
    assert resolve(text).raw == config


def test_a_schedule_without_a_rate() -> None:
    """transformers' Trainer takes this error, by its class and words, for a rate of 0."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    schedule = schedules.OneCycle(optimizer, cycle_min_lr=0.1, cycle_max_lr=1.0)
    with pytest.raises(AssertionError, match="need to call step\\(\\) first"):
        schedule.get_last_lr()


def test_a_child_of_an_activated_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the stand-in on its path from the beginning, and gets the patches for CPU ranks all the same."""
    monkeypatch.setattr(sys, "path", [str(SITE), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, PatchesOnImport)])
    before = list(sys.path)
    activate()
    activate()
    assert sys.path == before
    assert sum(isinstance(each, PatchesOnImport) for each in sys.meta_path) == 1


def _left_over(group: dist.ProcessGroup, stage: int) -> str:
    """A loss over two engines, and then a backward of the one that did not run it, without zero_grad()."""
    ds, keys = loops.deepspeed(), loops.config(stage, gradient_accumulation_steps=1, train_batch_size=8)
    first, second = nn.Linear(5, 5), nn.Linear(5, 5)
    one, *_ = ds.initialize(model=first, config=keys)
    other, *_ = ds.initialize(model=second, config=keys)
    x = torch.ones(2, 5)
    one.backward(other(one(x)).sum())
    one.step()
    with pytest.raises(RuntimeError) as caught:
        other.backward(other(x).sum())
    other.zero_grad()
    other.backward(other(x).sum())
    other.step()
    one.destroy()
    other.destroy()
    return str(caught.value)


def test_a_gradient_of_another_engine(pool: Pool) -> None:
    """It is not added in silence; zero_grad() drops it, and the engine trains on."""
    for stages in pool.run(loops.at_every_stage, _left_over, world=4):
        assert all("has a gradient from the backward of another engine" in text for text in stages)
        assert all("call zero_grad() of the model before this backward" in text for text in stages)


def _without_training(group: dist.ProcessGroup, stage: int, folder: str) -> tuple[bool, str]:
    """Whether an engine that only evaluates has DeepSpeed's owner of the hooks, and the error of custom_load_fn."""
    keys = loops.config(stage, optimizer=None, scheduler=None)
    engine, optimizer, *_ = loops.deepspeed().initialize(model=nn.Linear(5, 5), config=keys)
    owner = optimizer is engine.optimizer and hasattr(optimizer, "forward_hooks")
    with pytest.raises(NotImplementedError) as caught:
        engine.load_checkpoint(folder, custom_load_fn=print)
    engine.destroy()
    return owner, str(caught.value)


def test_an_engine_that_only_evaluates(pool: Pool, tmp_path: Path) -> None:
    """Its optimizer is None, and at stage 3 the owner of the hooks, which TRL takes off."""
    for stages in pool.run(loops.at_every_stage, _without_training, str(tmp_path), world=4):
        assert [owner for owner, _ in stages] == [False, False, False, True]
        assert all("takes no custom_load_fn" in text for _, text in stages)
