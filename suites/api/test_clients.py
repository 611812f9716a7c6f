"""A client's optimizer and scheduler do with the engine as they do with torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules

import zerobench

_STEPS = 6
_CONFIG = {"train_batch_size": 1}

Make = Callable[[torch.optim.Optimizer], schedules.LRScheduler]


def _sequential(optimizer: torch.optim.Optimizer) -> schedules.LRScheduler:
    warm_up = schedules.LinearLR(optimizer, total_iters=2)
    return schedules.SequentialLR(optimizer, [warm_up, schedules.CosineAnnealingLR(optimizer, 4)], milestones=[2])


def _chained(optimizer: torch.optim.Optimizer) -> schedules.LRScheduler:
    parts = [schedules.ConstantLR(optimizer, total_iters=2), schedules.ExponentialLR(optimizer, 0.5)]
    return schedules.ChainedScheduler(parts)


_SCHEDULERS: dict[str, Make] = {
    "step": lambda optimizer: schedules.StepLR(optimizer, 2),
    "lambda": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "restarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 2),
    "sequential": _sequential,
    "chained": _chained,
    "one cycle": lambda optimizer: schedules.OneCycleLR(optimizer, 1.0, total_steps=_STEPS + 1),
    "cyclic": lambda optimizer: schedules.CyclicLR(optimizer, 0.1, 1.0, step_size_up=2),
}


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    weights, biases = ([p for p in model.parameters() if p.dim() == dims] for dims in (2, 1))
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": biases, "lr": 0.5}]
    return torch.optim.Adam(groups, lr=0.1)


def _moved(optimizer: torch.optim.Optimizer, step: Callable[[], None]) -> list[list[Any]]:
    """The values that a schedule moves, of every group after each step."""
    moved = []
    for _ in range(_STEPS):
        step()
        moved.append([(group["lr"], group["betas"]) for group in optimizer.param_groups])
    return moved


def _training(engine: zerobench.Engine) -> Callable[[], None]:
    def step() -> None:
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()

    return step


@pytest.mark.parametrize("made", ["by the engine", "before it"])
@pytest.mark.parametrize("make", _SCHEDULERS.values(), ids=_SCHEDULERS)
def test_schedules_are_torchs(make: Make, made: str) -> None:
    """Rates, and the betas if a schedule cycles them; without a warning, which would be an error here."""
    model = nn.Linear(4, 1)
    client = _adam(model)
    given: Any = make if made == "by the engine" else make(client)
    engine, optimizer, _, scheduler = zerobench.initialize(model, _CONFIG, optimizer=client, lr_scheduler=given)
    moved = _moved(optimizer, _training(engine))

    alone = _adam(nn.Linear(4, 1))
    oracle = make(alone)

    def step() -> None:
        alone.step()
        oracle.step()

    assert moved == _moved(alone, step)
    assert scheduler.get_last_lr() == oracle.get_last_lr()


@pytest.mark.parametrize("made", ["by the engine", "before it"])
def test_a_schedule_that_needs_a_metric(made: str) -> None:
    """The engine refuses it; the caller can step it."""
    plateau = schedules.ReduceLROnPlateau
    given: Any = plateau if made == "by the engine" else plateau(_adam(nn.Linear(4, 1)))
    model = nn.Linear(4, 1)
    with pytest.raises(zerobench.ConfigError, match=r"ReduceLROnPlateau needs a metric .* call its step\(metric\)"):
        zerobench.initialize(model, _CONFIG, optimizer=_adam(model), lr_scheduler=given)
    engine, optimizer, _, _ = zerobench.initialize(model, _CONFIG, optimizer=_adam(model))
    scheduler = plateau(optimizer, patience=0, factor=0.5)
    for metric in (1.0, 2.0):
        _training(engine)()
        scheduler.step(metric)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.25]


def test_adam_that_decouples_its_decay() -> None:
    """torch's Adam with that option is AdamW."""
    make: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5),
        "decoupled": lambda parameters: torch.optim.Adam(
            parameters, lr=0.1, weight_decay=0.5, decoupled_weight_decay=True
        ),
        "L2": lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.5),
    }
    found = {name: _trained(each) for name, each in make.items()}
    assert torch.equal(found["decoupled"], found["AdamW"])
    assert not torch.equal(found["decoupled"], found["L2"])


def _trained(make: Callable[[Any], torch.optim.Optimizer]) -> Tensor:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    engine, *_ = zerobench.initialize(model, _CONFIG, optimizer=make(model.parameters()))
    for _ in range(2):
        _training(engine)()
    return model.weight.detach()


def _one_group(momentum: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)


def _buffer(engine: zerobench.Engine) -> Tensor:
    found = zerobench.safe_get_full_optimizer_state(next(engine.module.parameters()), "momentum_buffer")
    assert found is not None
    return found


def test_a_momentum_of_zero_keeps_the_buffer(tmp_path: Path) -> None:
    """If a client sets the momentum to zero for a step, buffer and weights are torch's, also over a save and a load."""
    (model, client), (other, plain) = _one_group(0.5), _one_group(0.5)
    engine, optimizer, _, _ = zerobench.initialize(model=model, optimizer=client, config=_CONFIG)
    step, weight = _training(engine), next(other.parameters())
    for momentum in (0.5, 0.0, 0.25):
        for group in (*optimizer.param_groups, *plain.param_groups):
            group["momentum"] = momentum
        step()
        plain.zero_grad()
        other(torch.ones(1, 4)).sum().backward()
        plain.step()
        torch.testing.assert_close(_buffer(engine), plain.state[weight]["momentum_buffer"], rtol=0, atol=0)
        engine.save_checkpoint(tmp_path)
        engine.load_checkpoint(tmp_path)
    torch.testing.assert_close(zerobench.safe_get_full_fp32_param(next(model.parameters())), weight.detach())


def test_a_momentum_that_comes_later_is_an_error() -> None:
    """An engine that was built without momentum keeps no buffer, and says so before it steps without one."""
    model, client = _one_group(0.0)
    engine, optimizer, _, _ = zerobench.initialize(model=model, optimizer=client, config=_CONFIG)
    engine.backward(engine(torch.ones(1, 4)).sum())
    optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(RuntimeError, match="need the state momentum_buffer, and no group needed it"):
        engine.step()
    optimizer.param_groups[0]["momentum"] = 0.0
    engine.step()


@pytest.mark.parametrize(
    ("made", "option", "value"),
    [("Adam", "maximize", True), ("SGD", "nesterov", True), ("SGD", "dampening", 0.25), ("Adagrad", "maximize", True)],
)
def test_an_option_that_comes_later_is_an_error(made: str, option: str, value: Any) -> None:
    """If a client sets an option that the engine's rule lacks after the engine was built, the step does not ignore
    it."""
    model = nn.Linear(4, 1)
    client = getattr(torch.optim, made)(model.parameters(), lr=0.1, **{"momentum": 0.5} if made == "SGD" else {})
    engine, optimizer, _, _ = zerobench.initialize(model=model, optimizer=client, config=_CONFIG)
    engine.backward(engine(torch.ones(1, 4)).sum())
    before = optimizer.param_groups[0][option]
    optimizer.param_groups[0][option] = value
    with pytest.raises(RuntimeError, match=f"the option {option} of a parameter group is set"):
        engine.step()
    optimizer.param_groups[0][option] = before
    engine.step()
