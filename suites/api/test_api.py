"""Optimizers, parameter groups and schedulers as ``initialize`` takes them: they train as in torch, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, LambdaLR, LRScheduler, OneCycleLR

import zerobench
from zerobench import engine
from zerobench.oracles.optimizer import ExactUpdate
from zerobench.ranks import Pool

pytestmark = pytest.mark.usefixtures("reference")

_STEPS = 4


@dataclass(frozen=True)
class _Rule:
    """A rule with two groups, by torch's class and by the configuration."""

    make: Callable[..., Optimizer]
    params: dict[str, Any]
    second: dict[str, Any]  # the second group's own values
    config: dict[str, Any]

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        matrices, rest = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() < 2]
        return [{"params": matrices}, {"params": rest, **self.second}]

    def client(self, model: nn.Module) -> Optimizer:
        return self.make(self.groups(model), **self.params)


_ADAM = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
_OTHER_ADAM = {"lr": 2e-2, "betas": (0.4, 0.99), "eps": 1e-8, "weight_decay": 0.0}
_SGD = {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1}
_OTHER_SGD = {"lr": 2e-2, "momentum": 0.0, "weight_decay": 0.0}
_ADAGRAD = {"lr": 1e-2, "lr_decay": 0.5, "eps": 1e-6, "weight_decay": 0.1}
_OTHER_ADAGRAD = {"lr": 2e-2, "lr_decay": 0.0, "eps": 1e-10, "weight_decay": 0.0}
_NESTEROV = {"lr": 1e-2, "betas": (0.8, 0.9), "momentum_decay": 0.1, "weight_decay": 0.1}
_RMSPROP = {"lr": 1e-2, "alpha": 0.9, "momentum": 0.5, "centered": True, "eps": 1.0, "weight_decay": 0.1}
_RULES = {
    "adam": _Rule(Adam, _ADAM, _OTHER_ADAM, {"type": "Adam", "params": {**_ADAM, "adam_w_mode": False}}),
    "adamw": _Rule(AdamW, _ADAM, _OTHER_ADAM, {"type": "AdamW", "params": _ADAM}),
    "adam-is-adamw": _Rule(AdamW, _ADAM, _OTHER_ADAM, {"type": "Adam", "params": _ADAM}),
    "sgd": _Rule(SGD, _SGD, _OTHER_SGD, {"type": "SGD", "params": _SGD}),
    "adagrad": _Rule(Adagrad, _ADAGRAD, _OTHER_ADAGRAD, {"type": "Adagrad", "params": _ADAGRAD}),
    "rmsprop": _Rule(RMSprop, _RMSPROP, {"momentum": 0.0}, {"type": "RMSprop", "params": _RMSPROP}),
    "radam": _Rule(RAdam, _ADAM, {"decoupled_weight_decay": True}, {"type": "RAdam", "params": _ADAM}),
    "nadam": _Rule(NAdam, _NESTEROV, {"decoupled_weight_decay": True}, {"type": "NAdam", "params": _NESTEROV}),
    "adamax": _Rule(Adamax, _ADAM, _OTHER_ADAM, {"type": "Adamax", "params": _ADAM}),
    "adadelta": _Rule(
        Adadelta, {"lr": 0.5, "rho": 0.5}, {"rho": 0.75}, {"type": "Adadelta", "params": {"lr": 0.5, "rho": 0.5}}
    ),
    "adamw-defaults": _Rule(AdamW, {}, {}, {"type": "AdamW", "params": {"weight_decay": 0.01}}),
    "sgd-defaults": _Rule(SGD, {}, {}, {"type": "SGD"}),
    "adagrad-defaults": _Rule(Adagrad, {}, {}, {"type": "adagrad"}),
    "rmsprop-defaults": _Rule(RMSprop, {}, {}, {"type": "RMSprop"}),
    "radam-defaults": _Rule(RAdam, {}, {}, {"type": "RAdam"}),
    "nadam-defaults": _Rule(NAdam, {}, {}, {"type": "NAdam"}),
    "adamax-defaults": _Rule(Adamax, {}, {}, {"type": "Adamax"}),
    "adadelta-defaults": _Rule(Adadelta, {}, {}, {"type": "Adadelta"}),
}
_RULE = _RULES["sgd"]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))


def _loss(model: Any, index: int) -> Tensor:
    """The loss of the leaf with this number."""
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(index))
    return model(x).square().mean()  # type: ignore[no-any-return]


def _config(stage: int = 2, **keys: Any) -> dict[str, Any]:
    zero = {"stage": stage, "chunk_size": 32, "stage3_param_persistence_threshold": 0}
    return {"train_micro_batch_size_per_gpu": 4, "zero_optimization": zero, **keys}


def _by_torch(schedule: Callable[[Optimizer], LRScheduler] | None = None, rule: _Rule = _RULE) -> Tensor:
    """All parameters after each step of plain torch, [steps, elements]."""
    model, trajectory = _model(), []
    optimizer = rule.client(model)
    scheduler = schedule(optimizer) if schedule else None
    for step in range(_STEPS):
        _loss(model, step).backward()  # type: ignore[no-untyped-call]
        with ExactUpdate():
            optimizer.step()
        optimizer.zero_grad()
        if scheduler:
            scheduler.step()
        trajectory.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return torch.stack(trajectory)


def _by_engine(model: nn.Module, config: dict[str, Any], **given: Any) -> Tensor:
    """The same by the engine; each rank has its own leaves."""
    engine, *_ = zerobench.initialize(model, config, **given)
    trajectory = []
    for step in range(_STEPS):
        engine.backward(_loss(engine, step * engine.ranks.world + engine.ranks.rank))
        engine.step()
        whole = [zerobench.safe_get_full_fp32_param(p) for p in model.parameters() if p.requires_grad]
        trajectory.append(torch.cat([p.flatten() for p in whole if p is not None]))
    engine.destroy()
    return torch.stack(trajectory)


def _both_ways(group: dist.ProcessGroup | None, name: str, stage: int) -> tuple[Tensor, Tensor]:
    """The trajectories with the client's optimizer, and with the configuration's and the same groups."""
    rule, model, other = _RULES[name], _model(), _model()
    client = _by_engine(model, _config(stage), optimizer=rule.client(model), process_group=group)
    config = _config(stage, optimizer=rule.config)
    return client, _by_engine(other, config, model_parameters=rule.groups(other), process_group=group)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("name", _RULES)
def test_rules_and_groups(name: str, stage: int) -> None:
    """A client's optimizer, and the configuration of the same rule with the same groups, train as torch does."""
    expected = _by_torch(rule=_RULES[name])
    assert all(torch.equal(trajectory, expected) for trajectory in _both_ways(None, name, stage))


@pytest.mark.parametrize("stage", [1, 3])
def test_rules_and_groups_on_two_ranks(pool: Pool, stage: int) -> None:
    """On two ranks both give the same bits on each of them."""
    first, *others = [one for both in pool.run(_both_ways, "adam", stage, world=2) for one in both]
    assert all(torch.equal(other, first) for other in others)


_PARAMETERS: dict[str, Callable[[nn.Sequential], Any]] = {
    "generator": lambda model: model.parameters(),
    "group": lambda model: [{"params": model.parameters()}],
    "both": lambda model: [{"params": model[0].parameters(), "lr": 1e-2}, *model[2].parameters()],
}


@pytest.mark.parametrize("given", _PARAMETERS)
def test_model_parameters(given: str) -> None:
    """An iterator over parameters, groups of them, and a mixture: the form changes no bit."""
    config, model = _config(optimizer=_RULE.config), _model()
    expected = _by_engine(_model(), config)
    assert torch.equal(_by_engine(model, config, model_parameters=_PARAMETERS[given](model)), expected)


@pytest.mark.parametrize("by_client", [False, True])
def test_frozen_parameters_in_a_group(by_client: bool) -> None:
    """Frozen parameters may be in a group; they keep their values."""
    model = _model()
    frozen = next(model.parameters()).requires_grad_(False)
    before = frozen.clone()
    groups = [{"params": list(model.parameters())}]
    given = {"optimizer": SGD(groups, lr=0.1)} if by_client else {"model_parameters": groups}
    _by_engine(model, _config(optimizer=_RULE.config), **given)
    assert torch.equal(frozen, before)


_SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "lambda": lambda optimizer: LambdaLR(optimizer, [lambda done: 0.5**done, lambda done: 1 / (1 + done)]),
    "one-cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=2 * _STEPS),  # moves the momentum, too
    "class": ConstantLR,
}


@pytest.mark.parametrize("name", _SCHEDULES)
def test_scheduler_of_the_client(name: str) -> None:
    """The engine trains by the rates of a scheduler made from the client's optimizer, and returns the scheduler."""
    model = _model()
    client = _RULE.client(model)
    scheduler = _SCHEDULES[name](client)
    trajectory = _by_engine(model, _config(), optimizer=client, lr_scheduler=scheduler)
    assert torch.equal(trajectory, _by_torch(_SCHEDULES[name]))


@pytest.mark.parametrize("name", _SCHEDULES)
def test_scheduler_by_a_callable(name: str) -> None:
    """A callable makes it from the engine's optimizer, which has the configuration's groups."""
    model, config = _model(), _config(optimizer=_RULE.config)
    trajectory = _by_engine(model, config, model_parameters=_RULE.groups(model), lr_scheduler=_SCHEDULES[name])
    assert torch.equal(trajectory, _by_torch(_SCHEDULES[name]))


@pytest.mark.parametrize("made", [True, False])
def test_scheduler_stands_still_on_overflow(pool: Pool, made: bool) -> None:
    """It steps with the step, not with each micro-step, and not if a rank's overflow skips the step on all ranks."""
    seen = [(0.5, 0.25, 1, 16.0), (0.5, 0.25, 1, 8.0), (0.25, 0.125, 2, 8.0)]
    assert pool.run(_overflowing, made, world=2) == [seen, seen]


def _overflowing(group: dist.ProcessGroup, made: bool) -> list[tuple[float, float, int, float]]:
    """Weight, learning rate, epoch and loss scale after each of three steps, the second with an overflow on rank 1."""
    model = nn.Linear(1, 1, bias=False)
    [parameter] = model.parameters()
    nn.init.ones_(parameter)
    client, schedule = SGD(model.parameters(), lr=0.5), partial(ExponentialLR, gamma=0.5)
    config = _config(gradient_accumulation_steps=2, fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1})
    scheduler = schedule(client) if made else schedule
    engine, optimizer, _, scheduler = zerobench.initialize(
        model, config, optimizer=client, lr_scheduler=scheduler, process_group=group
    )
    seen = []
    for step in range(3):
        for micro_step in range(2):
            bad = (step, micro_step, dist.get_rank(group)) == (1, 0, 1)
            x = torch.full((1, 1), math.inf if bad else 1.0, dtype=torch.float16)
            engine.backward(engine(x).float().sum())
            engine.step()
        weight = zerobench.safe_get_full_fp32_param(parameter)
        assert weight is not None
        seen.append((float(weight), optimizer.param_groups[0]["lr"], scheduler.last_epoch, engine.loss_scale))
    engine.destroy()
    return seen


def _stepped(make: Callable[..., Optimizer], model: nn.Module) -> Optimizer:
    optimizer = make(model.parameters())
    _loss(model, 0).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return optimizer


_REFUSED: list[tuple[Callable[[nn.Sequential], Optimizer], str]] = [
    *(
        (partial(_stepped, make), "has stepped already; the engine starts from fresh state: pass a new one")
        for make in (Adam, Adagrad)
    ),
    (lambda m: SGD(m[0].parameters()), r"parameter '2\.weight' trains but is in no group; add it, or set requires_"),
    (
        lambda m: SGD([{"params": m.parameters()}, {"params": nn.Linear(7, 3, bias=False).parameters()}]),
        r"holds a parameter of shape \(3, 7\) that the model does not have",
    ),
]


@pytest.mark.parametrize(("make", "message"), _REFUSED)
def test_optimizers_that_are_refused(make: Callable[[nn.Sequential], Optimizer], message: str) -> None:
    """State, and parameters that are not the model's: each is one error."""
    model = _model()
    with pytest.raises(zerobench.ConfigError, match=message):
        zerobench.initialize(model, _config(), optimizer=make(model))


def test_parameters_that_are_refused() -> None:
    """Groups that lack a parameter or have one of another model, and a scheduler without an optimizer."""
    model, config = _model(), _config(optimizer=_RULE.config)
    with pytest.raises(zerobench.ConfigError, match=r"parameter '2\.weight' trains but is in no group"):
        zerobench.initialize(model, config, model_parameters=[{"params": model[0].parameters()}])
    with pytest.raises(zerobench.ConfigError, match=r"a parameter of shape \(3,\) that the model does not have"):
        zerobench.initialize(model, config, model_parameters=[*model.parameters(), nn.Parameter(torch.ones(3))])
    with pytest.raises(zerobench.ConfigError, match=r"has no optimizer; give config\['optimizer'\] or pass"):
        zerobench.initialize(model, _config(), lr_scheduler=ConstantLR)


def test_one_api_by_two_names() -> None:
    """``zerobench`` offers all that ``engine`` does, and each is the engine's own."""
    assert zerobench.__all__ == engine.__all__
    assert all(getattr(zerobench, name) is getattr(engine, name) for name in engine.__all__)
