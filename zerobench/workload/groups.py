"""The parameter groups of a Scenario's optimizer: who is in which, and with which hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from zerobench.scenario import Optimizer


def specs(spec: Optimizer) -> list[Optimizer]:
    """The optimizer of each group, in their order."""
    second = [_second(spec)] if spec.second_group else []
    return [spec, *second, *([_third(spec)] if spec.third_group else [])]


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


def _second(spec: Optimizer) -> Optimizer:
    """No weight decay, and other values of all that is not zero, so that an engine that mixes two groups shows."""
    beta1, beta2 = spec.betas
    return replace(
        spec,
        lr=2 * spec.lr,
        betas=(beta1 / 2, beta2 / 2),
        eps=2 * spec.eps,
        weight_decay=0.0,
        momentum=spec.momentum / 2,
        lr_decay=spec.lr_decay / 2,
    )


def _third(spec: Optimizer) -> Optimizer:
    """Half the learning rate, twice the weight decay, and a quarter of the second group's other values."""
    beta1, beta2 = spec.betas
    return replace(
        spec,
        lr=spec.lr / 2,
        betas=(beta1 / 4, beta2 / 4),
        eps=4 * spec.eps,
        weight_decay=2 * spec.weight_decay,
        momentum=spec.momentum / 4,
        lr_decay=spec.lr_decay / 4,
    )
