"""Constructed: the states that an optimizer's constructor gives its parameters, made for other parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

#: By the state's name, a function that makes it for a parameter.
FirstStates = Mapping[str, Callable[[Tensor], Any]]


def first_states(client: torch.optim.Optimizer) -> FirstStates:
    """The states of an optimizer before its first step; empty if it makes them in that step, as most do.

    Raises:
        ValueError: a state does not begin with one value for all elements of all parameters.
    """
    found: dict[str, Any] = {}
    for parameter, state in client.state.items():
        for name, value in state.items():
            first = _first_value(parameter, value)
            if first is None or not _alike(found.setdefault(name, first), first):
                raise ValueError(f"its state {name!r} does not begin with one value for all elements")
    return {name: partial(_like, value) for name, value in found.items()}


def made(first: FirstStates, parameter: Tensor) -> dict[str, Any]:
    """The first states for a parameter."""
    return {name: make(parameter) for name, make in first.items()}


def _first_value(parameter: Tensor, value: Any) -> Any:
    """Of a state with a value for each element that one value, as [1]; any other state as it is; None if the values
    differ, or if there are none, because the parameter is sharded already."""
    if not isinstance(value, Tensor) or not value.dim() or value.shape != parameter.shape:
        return value
    return value.flatten()[:1].clone() if value.numel() and bool((value == value.flatten()[0]).all()) else None


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(torch.equal(one, other) if isinstance(one, Tensor) else one == other)


def _like(value: Any, parameter: Tensor) -> Any:
    if isinstance(value, Tensor) and value.dim():
        return torch.full_like(parameter, value.item())
    return copy.deepcopy(value)
