"""The changes that a client makes to parameters and to which of them train, between steps; and to gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from zerobench.recording import State
from zerobench.scenario import Scenario
from zerobench.workload import models


def edited(scenario: Scenario, step: int) -> State:
    """The values that the client sets before ``step``: of every second trained parameter, those of another seed.

    In memory a value has its dimensions in the reverse order, as the transpose of another one has.
    """
    model = models.build(scenario.but(seed=scenario.seed + 2 + step))
    trained = [(name, _reversed_in_memory(p.detach())) for name, p in model.named_parameters() if p.requires_grad]
    return dict(trained[step % 2 :: 2])


def _reversed_in_memory(value: Tensor) -> Tensor:
    order = tuple(reversed(range(value.ndim)))
    return value.permute(order).contiguous().permute(order)


def without_gradient(scenario: Scenario, step: int) -> list[str]:
    """The parameters whose gradients the client zeroes in ``step``: every second trained one."""
    model = models.build(scenario)
    return [name for name, p in model.named_parameters() if p.requires_grad][step % 2 :: 2]


def let_train(block: Iterable[nn.Parameter], scenario: Scenario, step: int) -> None:
    """Let the parameters that rest at times require gradients in ``step``, or not if the Scenario freezes them."""
    for parameter in block:
        parameter.requires_grad_(step not in scenario.frozen_steps)


def resting(model: nn.Module, scenario: Scenario) -> list[nn.Parameter]:
    """The trained parameters that the Scenario freezes in some steps; none if it freezes none."""
    if not scenario.frozen_steps:
        return []
    return trained(model)[::2] if scenario.freezes_half else trained(first_block(model))


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The module's trained parameters."""
    return [p for p in module.parameters() if p.requires_grad]


def first_block(model: nn.Module) -> nn.Module:
    """The model's first block."""
    return next(model.get_submodule("blocks").children())
