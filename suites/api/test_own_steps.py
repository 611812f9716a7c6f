"""A client's optimizer that the engine has no rule for: its own step, or one error that says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import ASGD, LBFGS, SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

import zerobench
from zerobench.ranks import Pool

pytestmark = pytest.mark.usefixtures("reference")

_STEPS = 4
Make = Callable[[Any], Optimizer]


class _Users(Optimizer):
    """A rule that torch does not have: Lion, with a state that starts at one."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr, "beta": 0.75})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, p.grad, self.state[p], group)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        state.setdefault("mean", torch.ones_like(p))
        p.sub_((state["mean"] + g).sign() * group["lr"])
        state["mean"] = state["mean"] * group["beta"] + g * (1 - group["beta"])


class _Counting(_Users):
    """Its count is a Python number, and the rate depends on it."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        state["done"] = state.get("done", 0) + 1
        p.sub_(g * (group["lr"] / state["done"]))


class _FirstInConstructor(_Users):
    """Its constructor makes its states, as that of Adagrad does in torch 2.11."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, lr)
        for p in [p for group in self.param_groups for p in group["params"]]:
            self.state[p] = {"mean": torch.full_like(p, 0.5), "rate": torch.tensor(2.0)}

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        state["rate"] = state["rate"] * 0.5
        state["mean"] = state["mean"] * group["beta"] + g * state["rate"]
        p.sub_(state["mean"] * group["lr"])


class _FirstDiffers(_FirstInConstructor):
    """Its states begin with other values in each parameter."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, lr)
        for p, state in self.state.items():
            state["mean"] = p.detach().clone()


class _Lamb(_Users):
    """A step whose size depends on the norm of the whole parameter."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        p.sub_(g * (group["lr"] * p.norm() / g.norm()))


class _ByDimensions(_Users):
    """It decays matrices only."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        p.mul_(0.5 if p.dim() > 1 else 1.0).sub_(g * group["lr"])


class _CountsByGroup(_Users):
    """Its count is an option of the group."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        group["done"] = group.get("done", 0) + 1  # type: ignore[index]
        p.sub_(g * (group["lr"] / group["done"]))


class _Noisy(_Users):
    """It adds noise."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        p.sub_(g * group["lr"] + torch.randn_like(p))


class _Keeps(_Users):
    """It keeps its state beside torch's."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        means: dict[Any, Tensor] = self.__dict__.setdefault("means", {})
        means[p] = means.get(p, torch.zeros_like(p)) * 0.5 + g
        p.sub_(means[p] * group["lr"])


class _Decays(_Users):
    """It keeps a Python number that counts nothing."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        state["rate"] = state.get("rate", 1.0) * 0.5
        p.sub_(g * (group["lr"] * state["rate"]))


class _Still(_Users):
    """It forgets to step."""

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        pass


_TAKEN: dict[str, Make] = {
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.5, nesterov=True),
    "dampening": lambda p: SGD(p, lr=0.1, momentum=0.5, dampening=0.25),
    "amsgrad": lambda p: Adam(p, lr=0.1, amsgrad=True),
    "amsgrad in one group": lambda p: Adam([p[0], {**p[1], "amsgrad": True}], lr=0.1),
    "nesterov in one group": lambda p: SGD([{**p[0], "nesterov": True}, p[1]], lr=0.1, momentum=0.5),
    "fused": lambda p: AdamW(p, lr=0.1, amsgrad=True, fused=True),
    "maximize": lambda p: AdamW(p, lr=0.1, maximize=True),
    "radam": lambda p: RAdam(p, lr=0.1, maximize=True),
    "rmsprop": lambda p: RMSprop(p, maximize=True, momentum=0.5),
    "adadelta": lambda p: Adadelta(p, maximize=True),
    "rprop": lambda p: Rprop(p, lr=0.1),
    "accumulator": lambda p: Adagrad(p, initial_accumulator_value=0.5),
    "subclass": lambda p: type("Mine", (AdamW,), {})(p, lr=0.1),
    "asgd": lambda p: ASGD(p, lr=0.1, t0=1, weight_decay=0.1),
    "nadam": lambda p: NAdam(p, lr=0.1, maximize=True),
    "users": _Users,
    "counting": _Counting,
    "constructor": _FirstInConstructor,
    "users, warming up": lambda p: _Users(p, lr=0.0),
}


def _model() -> nn.Sequential:
    """All parameters are multiples of 64 elements, which torch rounds alike."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64))


def _groups(model: nn.Sequential) -> list[dict[str, Any]]:
    weight, *others = model.parameters()
    return [{"params": [weight], "lr": 0.25}, {"params": others}]


def _loss(model: Any, index: int) -> Tensor:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(index))
    dtype = next(getattr(model, "module", model).parameters()).dtype
    return model(x.to(dtype)).float().square().mean()  # type: ignore[no-any-return]


def _by_torch(make: Make) -> Tensor:
    model = _model()
    optimizer = make(_groups(model))
    for step in range(_STEPS):
        optimizer.zero_grad()
        _loss(model, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _config(stage: int, **keys: Any) -> dict[str, Any]:
    zero = {"stage": stage, "chunk_size": 32, "stage3_param_persistence_threshold": 0, "sub_group_size": 96}
    return {"train_micro_batch_size_per_gpu": 4, "zero_optimization": zero | keys.pop("zero", {}), **keys}


def _engine(make: Make, config: dict[str, Any], group: Any = None) -> tuple[zerobench.Engine, nn.Module]:
    model = _model()
    return zerobench.initialize(model, config, optimizer=make(_groups(model)), process_group=group)[0], model


def _train(engine: zerobench.Engine, steps: Iterable[int]) -> None:
    for step in steps:
        engine.backward(_loss(engine, step * engine.ranks.world + engine.ranks.rank))
        engine.step()


def _weights(model: nn.Module) -> Tensor:
    whole = [zerobench.safe_get_full_fp32_param(p) for p in model.parameters()]
    return torch.cat([p.flatten() for p in whole if p is not None])


def _by_engine(group: dist.ProcessGroup | None, name: str, config: dict[str, Any]) -> Tensor:
    engine, model = _engine(_TAKEN[name], config, group)
    _train(engine, range(_STEPS))
    weights = _weights(model)
    engine.destroy()
    return weights


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("name", _TAKEN)
def test_trains_as_torch(name: str, stage: int) -> None:
    """The engine's pieces have the bits of the optimizer on whole parameters."""
    assert torch.equal(_by_engine(None, name, _config(stage)), _by_torch(_TAKEN[name]))


_SETTINGS: dict[str, dict[str, Any]] = {
    "stage 1": _config(1),
    "stage 2, sub-groups": _config(2, zero={"sub_group_size": 32}),
    "stage 3": _config(3),
    "stage 3, offload": _config(3, zero={f"offload_{each}": {"device": "cpu"} for each in ("optimizer", "param")}),
}


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["nesterov", "amsgrad", "users", "counting", "constructor"])
def test_settings_change_nothing(pool: Pool, name: str, dtype: str) -> None:
    """On two ranks, stages, sub-groups and offload give the bits of stage 0."""
    precision = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    expected, same = pool.run(_by_engine, name, _config(0) | precision, world=2)
    assert torch.equal(expected, same)
    for label, config in _SETTINGS.items():
        for weights in pool.run(_by_engine, name, config | precision, world=2):
            assert torch.equal(weights, expected), label


@pytest.mark.parametrize("name", ["amsgrad", "users", "counting", "constructor"])
def test_resume(name: str, tmp_path: Path) -> None:
    """A checkpoint has the states and the counts: another engine goes on with the same bits."""
    expected = _by_engine(None, name, _config(3))
    engine, _ = _engine(_TAKEN[name], _config(3))
    _train(engine, range(2))
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    other, model = _engine(_TAKEN[name], _config(1))
    other.load_checkpoint(tmp_path)
    _train(other, range(2, _STEPS))
    assert torch.equal(_weights(model), expected)


def test_another_class_does_not_load(tmp_path: Path) -> None:
    """A checkpoint of one client's class is not one of another, though their states have the same names."""
    engine, _ = _engine(_Users, _config(1))
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    other, _ = _engine(type("Others", (_Users,), {}), _config(1))
    with pytest.raises(zerobench.CheckpointError, match="the optimizer"):
        other.load_checkpoint(tmp_path)


_HOOKED: list[int] = []


def test_hooks_and_schedulers_are_not_called_for_a_piece() -> None:
    """A scheduler counts the engine's steps, not those of the pieces."""
    model = _model()
    client = _Users(_groups(model))
    client.register_step_pre_hook(lambda *_: _HOOKED.append(1))
    schedule = torch.optim.lr_scheduler.StepLR(client, 1, gamma=0.5)
    engine, optimizer, _, _ = zerobench.initialize(model, _config(2), optimizer=client, lr_scheduler=schedule)
    _train(engine, range(2))
    assert not _HOOKED
    assert [group["lr"] for group in optimizer.param_groups] == [0.0625, 0.0025]


_ANOTHER_STEP = "on a part of a parameter it makes another step than on the whole parameter"
_REFUSED: dict[str, tuple[Make, str]] = {
    "norm": (_Lamb, f"optimizer _Lamb is not offered: {_ANOTHER_STEP}; ZeRO steps each rank's shard by itself"),
    "dimensions": (_ByDimensions, _ANOTHER_STEP),
    "group": (_CountsByGroup, _ANOTHER_STEP),
    "noise": (_Noisy, _ANOTHER_STEP),
    "elsewhere": (_Keeps, _ANOTHER_STEP),
    "first states": (_FirstDiffers, "its state 'mean' does not begin with one value for all elements"),
    "still": (_Still, "it moves no parameter in 12 steps"),
    "number": (_Decays, "its state 'rate' has no fp32 value for each element or the parameter, nor counts steps"),
    "closure": (lambda p: LBFGS([each for group in p for each in group["params"]]), r"raises TypeError\(.*closure"),
    "capturable": (lambda p: Adam(p, capturable=True), r"of a parameter of shape \[256\] raises AssertionError"),
    "differentiable": (lambda p: AdamW(p, differentiable=True), r"raises RuntimeError\('a leaf Variable that"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_refused(name: str) -> None:
    """An optimizer that the engine cannot step in pieces is one error with the reason, and moves nothing."""
    make, message = _REFUSED[name]
    model = _model()
    initial, client = [p.clone() for p in model.parameters()], make(_groups(model))
    with pytest.raises(zerobench.ConfigError, match=message):
        zerobench.initialize(model, _config(2), optimizer=client)
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), initial, strict=True))
