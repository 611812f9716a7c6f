"""The changes that a client makes to parameters and to which of them train, between steps; and to gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from zerobench.recording import State
from zerobench.scenario import Scenario
from zerobench.workload import models


def edited(scenario: Scenario, step: int) -> State:
    """The values that the client sets before ``step``: of every second trained parameter, those of another seed."""
    model = models.build(scenario.but(seed=scenario.seed + 2 + step))
    trained = [(name, p.detach()) for name, p in model.named_parameters() if p.requires_grad]
    return dict(trained[step % 2 :: 2])


def without_gradient(scenario: Scenario, step: int) -> list[str]:
    """The parameters whose gradients the client zeroes in ``step``: every second trained one."""
    model = models.build(scenario)
    return [name for name, p in model.named_parameters() if p.requires_grad][step % 2 :: 2]


def let_train(block: Iterable[nn.Parameter], scenario: Scenario, step: int) -> None:
    """Let the parameters of the first block require gradients in ``step``, or not if the Scenario freezes them."""
    for parameter in block:
        parameter.requires_grad_(step not in scenario.frozen_steps)


def first_block(model: nn.Module) -> list[nn.Parameter]:
    """The trained parameters of the model's first block."""
    block = next(model.get_submodule("blocks").children())
    return [p for p in block.parameters() if p.requires_grad]
