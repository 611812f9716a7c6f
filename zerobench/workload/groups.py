"""The parameter groups of a Scenario's optimizer: who is in which, and with which hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zerobench.scenario import Optimizer, Scenario


def specs(spec: Optimizer) -> list[Optimizer]:
    """The optimizer of each group, in their order."""
    second = [_scaled(spec, rate=2, decay=0, rest=0.5)] if spec.second_group else []
    third = [_scaled(spec, rate=0.5, decay=2, rest=0.25)] if spec.third_group else []
    return [spec, *second, *third]


def group_of(spec: Optimizer, name: str, dimensions: int) -> int:
    """The number of a parameter's group: the last one has the head, the second one all of one dimension or fewer."""
    if spec.third_group and name.startswith("head."):
        return 1 + spec.second_group
    return int(spec.second_group and dimensions < 2)


def members(spec: Optimizer, named: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of each group's parameters, in the order of ``named``; a group may be empty."""
    found: list[list[str]] = [[] for _ in specs(spec)]
    for name, parameter in named.items():
        found[group_of(spec, name, parameter.ndim)].append(name)
    return found


def scheduled_values(scenario: Scenario, groups: Iterable[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The values of the hyperparameters that the Scenario schedules, by name and number of the parameter group."""
    return {
        f"{name} of group {number}": torch.tensor(float(value), dtype=torch.float64)
        for number, group in enumerate(groups)
        for name in scenario.schedules
        if (value := _value(group, name)) is not None
    }


def _value(group: Mapping[str, Any], name: str) -> Any:
    """In a group with betas, ``momentum`` is the first of them, and in one with an lr_decay it is that."""
    if name == "momentum" and "betas" in group:
        return group["betas"][0]
    return group.get("lr_decay" if name == "momentum" and "lr_decay" in group else name)


def _scaled(spec: Optimizer, rate: float, decay: float, rest: float) -> Optimizer:
    """With other values of all that is not zero, so that an engine that mixes two groups shows.

    The learning rate and the weight decay are ``rate`` and ``decay`` times those of the first group, eps is divided by
    ``rest``, and the others are multiplied by it; each is a power of two or zero, so nothing is rounded.
    """
    beta1, beta2 = spec.betas
    return replace(
        spec,
        lr=rate * spec.lr,
        betas=(rest * beta1, rest * beta2),
        eps=spec.eps / rest,
        weight_decay=decay * spec.weight_decay,
        momentum=rest * spec.momentum,
        lr_decay=rest * spec.lr_decay,
    )
