"""The changes that a client makes to parameters and to which of them train, between steps; and to gradients."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from zerobench.recording import State
from zerobench.scenario import Scenario
from zerobench.workload import models

#: Values whose bits a sum with zeros or a kernel that flushes would change, in parameters of several elements.
_ZEROS = (-0.0, 0.0)
_SUBNORMAL = (1e-40, -1e-40)
_SEVERAL = 12


def edited(scenario: Scenario, step: int) -> State:
    """The values that the client sets before ``step``: of some trained parameters, those of another seed.

    In memory a value has its dimensions in the reverse order, as the transpose of another one has. But for exact data
    one of more elements than a few has zeros of both signs, and subnormal numbers if no forward uses it: in others a
    gradient might be so small that half of it is rounded.
    """
    model = models.build(scenario.but(seed=scenario.seed + 2 + step))
    values = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    chosen = {name: values[name] for name in _chosen(scenario, step, list(values))}
    if scenario.data != "dyadic":
        for name, value in chosen.items():
            _set_rare(value, _ZEROS if not name.startswith("unused.") else _ZEROS + _SUBNORMAL)
    return {name: _reversed_in_memory(value) for name, value in chosen.items()}


def _chosen(scenario: Scenario, step: int, names: list[str]) -> list[str]:
    """Every second parameter; or, if the client changes neighbours, all but every third."""
    if scenario.changes_neighbours:
        return [name for index, name in enumerate(names) if (index + step) % 3]
    return names[step % 2 :: 2]


def _set_rare(value: Tensor, rare: tuple[float, ...]) -> None:
    if value.numel() >= _SEVERAL:
        numbers = value.flatten()
        numbers[: len(rare)] = torch.tensor(rare)
        value.copy_(numbers.view(value.shape))


def _reversed_in_memory(value: Tensor) -> Tensor:
    order = tuple(reversed(range(value.ndim)))
    return value.permute(order).contiguous().permute(order)


def without_gradient(scenario: Scenario, step: int) -> list[str]:
    """The parameters whose gradients the client zeroes in ``step``, some of those that train."""
    model = models.build(scenario)
    return _chosen(scenario, step, [name for name, p in model.named_parameters() if p.requires_grad])


def let_train(block: Iterable[nn.Parameter], scenario: Scenario, step: int) -> None:
    """Let the parameters that rest at times require gradients in ``step``, or not if the Scenario freezes them."""
    for parameter in block:
        parameter.requires_grad_(step not in scenario.frozen_steps)


def resting(model: nn.Module, scenario: Scenario) -> list[nn.Parameter]:
    """The trained parameters that the Scenario freezes in some steps; none if it freezes none."""
    if not scenario.frozen_steps:
        return []
    if scenario.freezes_half:
        return trained(model)[::2]
    return trained(model.get_submodule("stem") if scenario.freezes_stem else first_block(model))


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The module's trained parameters."""
    return [p for p in module.parameters() if p.requires_grad]


def first_block(model: nn.Module) -> nn.Module:
    """The model's first block."""
    return next(model.get_submodule("blocks").children())
