"""The host does not wait for the device in a step, and reads the outcome of a step when it needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR

import zerobench
from zerobench.engine.optim.check import Outcome, PendingOutcome
from zerobench.engine.optim.step import Stepper
from zerobench.ranks import Pool
from zerobench.suites.support.waiting import waits

_PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "loss_scale": 8}},
}
_DYNAMIC = {"fp16": {"enabled": True, "initial_scale_power": 4}}


def _engine(group: dist.ProcessGroup | None, stage: int, keys: dict[str, Any], **given: Any) -> zerobench.Engine:
    """Of a model with a parameter that no leaf uses."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"used": nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)), "idle": nn.Linear(3, 3)}
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": stage, "chunk_size": 32, "stage3_param_persistence_threshold": 0},
        **keys,
    }
    model.forward = lambda x: model["used"](x).float().square().mean()
    return zerobench.initialize(model, config, process_group=group, **given)[0]


def _step(engine: zerobench.Engine, index: int, bad: bool = False) -> None:
    for micro_step in range(2):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(2 * index + micro_step))
        x[0, 0] = math.inf if bad else 0.0
        engine.backward(engine(x.to(next(engine.module.parameters()).dtype)))
        engine.step()


@contextmanager
def _logged() -> Iterator[list[str]]:
    """The waits in the block, and in their order: each check that is issued, each update, each outcome that is read.

    On CUDA an outcome is read from host memory, after a wait for its check; reading it counts for nothing else.
    """
    check, step, fetch = Stepper.check_gradients, Stepper.step, PendingOutcome._fetch
    with waits() as log, ExitStack() as stack:

        def reading(outcome: PendingOutcome) -> Outcome:
            before = len(log)
            found = fetch(outcome)
            log[before:] = ["outcome"]
            return found

        def issuing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def issued(*args: Any) -> Any:
                done = call(*args)
                log.append(name)
                return done

            return issued

        stack.enter_context(mock.patch.object(PendingOutcome, "_fetch", reading))
        stack.enter_context(mock.patch.object(Stepper, "check_gradients", issuing("check", check)))
        stack.enter_context(mock.patch.object(Stepper, "step", issuing("update", step)))
        yield log


def _log(group: dist.ProcessGroup | None, stage: int, keys: dict[str, Any], **given: Any) -> list[str]:
    """The log of three steps after the first; the second of them overflows."""
    engine = _engine(group, stage, keys, **given)
    _step(engine, 0)
    with _logged() as log:
        for index in range(1, 4):
            _step(engine, index, bad=index == 2)
        seen = list(log)
    assert (engine.global_steps, engine.skipped_steps) == (4, 1)
    assert max(engine.stepper.steps) == 3
    assert min(engine.stepper.steps) == 0  # of the idle parameters
    engine.destroy()
    return seen


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (1, "bf16"), (2, "fp16")])
def test_a_step_waits_for_nothing_of_its_own(stage: int, precision: str) -> None:
    """Before it updates, a step reads the outcome of the step before, which has the whole queue behind it."""
    assert _log(None, stage, _PRECISIONS[precision]) == ["check", "outcome", "update"] * 3


def test_two_ranks_wait_for_nothing(pool: Pool) -> None:
    assert pool.run(_log, 2, _PRECISIONS["bf16"], world=2) == [["check", "outcome", "update"] * 3] * 2


def test_a_dynamic_loss_scale_needs_the_step_before() -> None:
    """For the first backward of the next step, when its forward is in the queue."""
    assert _log(None, 1, _DYNAMIC) == ["outcome", "check", "update"] * 3


def test_a_schedule_needs_the_outcome_after_the_update() -> None:
    """It advances before step() returns, so the caller sees the right rate; the device has the update to do."""
    assert _log(None, 2, {}, lr_scheduler=partial(ConstantLR, factor=0.5)) == ["check", "update", "outcome"] * 3


def test_the_cpu_needs_the_outcome_before_it_updates() -> None:
    """Of the same step; a skipped one moves no states."""
    offloaded = {"zero_optimization": {"stage": 2, "chunk_size": 32, "offload_optimizer": {"device": "cpu"}}}
    applied, skipped = ["check", "outcome", "update"], ["check", "outcome"]
    assert _log(None, 2, offloaded) == [*applied, *skipped, *applied]


#: Several steps overflow until the scale is small enough.
_LARGE = {"fp16": {"enabled": True, "initial_scale_power": 24, "hysteresis": 1}}
_UNREAD: list[tuple[int, dict[str, Any]]] = [
    (0, _LARGE),
    (1, _PRECISIONS["bf16"]),
    (2, {**_LARGE, "scheduler": True}),
    (3, _LARGE),
]


def _trained(group: dist.ProcessGroup | None, stage: int, keys: dict[str, Any], read: bool) -> list[Tensor]:
    """Masters, states and numbers after some steps of which two overflow; ``read``: all numbers after each of them."""
    rest = {key: value for key, value in keys.items() if key != "scheduler"}
    given = {"lr_scheduler": partial(ExponentialLR, gamma=0.5)} if "scheduler" in keys else {}
    engine = _engine(group, stage, rest, **given)
    for index in range(12):
        _step(engine, index, bad=index in (2, 9))
        if read:
            _numbers(engine)
    found = [_numbers(engine)]
    for parameter in engine.module.parameters():
        states = (zerobench.safe_get_full_optimizer_state(parameter, name) for name in ("exp_avg", "exp_avg_sq"))
        found += [each for each in (zerobench.safe_get_full_fp32_param(parameter), *states) if each is not None]
    engine.destroy()
    return found


_SKIPPED = 7  # its place among the numbers


def _numbers(engine: zerobench.Engine) -> Tensor:
    norm, rate = engine.get_global_grad_norm() or 0.0, engine.optimizer.param_groups[0]["lr"]
    scaler = engine.scaler.state().values()
    numbers = [
        norm,
        rate,
        *scaler,
        engine.loss_scale,
        engine.skipped_steps,
        engine.global_steps,
        engine.optimizer.overflow,
    ]
    return torch.tensor([*numbers, *engine.stepper.steps], dtype=torch.float64)


@pytest.mark.parametrize(("stage", "keys"), _UNREAD)
def test_reading_changes_no_bit(pool: Pool, stage: int, keys: dict[str, Any]) -> None:
    """If nobody asks for an outcome between steps, training is the same as if somebody asks for all after each."""
    unread, read = (pool.run(_trained, stage, keys, each, world=2) for each in (False, True))
    assert 1 < unread[0][0][_SKIPPED] < 11
    for one, other in zip(unread, read, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("number", ["norm", "skipped_steps", "scale", "overflow", "steps"])
def test_a_reading_is_of_the_last_step(number: str) -> None:
    """Whichever number is read first, it has the last step's outcome."""
    engine = _engine(None, 1, _DYNAMIC)
    _step(engine, 0)
    _step(engine, 1, bad=True)
    readings: dict[str, Callable[[], Any]] = {
        "norm": lambda: math.isfinite(engine.get_global_grad_norm() or 0.0),
        "skipped_steps": lambda: engine.skipped_steps,
        "scale": lambda: engine.loss_scale,
        "overflow": lambda: engine.optimizer.overflow,
        "steps": lambda: max(engine.stepper.steps),
    }
    expected = {"norm": False, "skipped_steps": 1, "scale": 16.0, "overflow": True, "steps": 1}
    assert readings[number]() == expected[number]
    assert {name: read() for name, read in readings.items()} == expected
