"""The state that a client gives a save: nested values from a Scenario's seed, and their comparison by name."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zerobench.recording import State
from zerobench.scenario import Scenario

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
_SHAPES = ((), (0,), (3,), (2, 3))
_PLAIN = (None, True, False, 0, -1, 2**53 + 1, -(2**62), 0.1, -0.0, 1e300, float("inf"), "", "a b", "größer\n", "None")
#: Levels of lists and dicts within each other.
_DEPTH = 3
_LARGEST = 2**63


def client_state(scenario: Scenario, step: int) -> dict[str, Any]:
    """The state that the client gives the save before ``step``, the same on every rank: a part of it is always there,
    and the rest is other values in each Scenario."""
    rng = random.Random(f"client {scenario.seed} {step}")  # noqa: S311 - values to save
    drawn = {f"value {index}": _value(rng, _DEPTH) for index in range(rng.randint(0, 3))}
    return {"step": step, "losses": [0.5 / (step + 1), None], "best": {"weights": _tensor(rng)}, **drawn}


def saved_client_state(scenario: Scenario, step: int) -> dict[str, Any]:
    """The state that the save before ``step`` is given: that of this step, and if the client carries it, under other
    keys, what the loads before have given back."""
    saves = sorted(each for each in set(scenario.resumes) if each < step) if scenario.carries_client_state else []
    return {key: value for save in [*saves, step] for key, value in client_state(scenario, save).items()}


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.choice(["plain", "tensor", "list", "dict"] if depth else ["plain", "tensor"])
    if kind == "tensor":
        return _tensor(rng)
    if kind == "list":
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == "dict":
        return {rng.choice("abcdef") * 2: _value(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return rng.choice(_PLAIN)


def _tensor(rng: random.Random) -> Tensor:
    shape, dtype = rng.choice(_SHAPES), rng.choice(_DTYPES)
    numbers = [rng.randint(0, 100) for _ in range(torch.Size(shape).numel())]
    return torch.tensor(numbers).view(shape).to(dtype)


def given_back(given: Mapping[str, Any], loaded: Mapping[str, Any]) -> State:
    """The values that a load gave back under the keys of ``given``, flat; an engine may add keys of its own."""
    found: State = {}
    for key in given:
        found |= (
            _flat(loaded[key], f"client_state, {key}") if key in loaded else {f"client_state, {key}": _text("lost")}
        )
    return found


def _flat(value: Any, name: str) -> State:
    """A value as tensors by name: equal only if value and types are."""
    if isinstance(value, Tensor):
        return {name: value.detach().cpu()}
    found = {name: _leaf(value)}
    if isinstance(value, dict):
        for key, each in value.items():
            found |= _flat(each, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            found |= _flat(each, f"{name}[{index}]")
    return found


def _leaf(value: Any) -> Tensor:
    """A number as a number; of a container its type and keys; any other value as the bytes of its text."""
    if type(value) in (bool, float) or (type(value) is int and -_LARGEST <= value < _LARGEST):
        return torch.tensor(value, dtype=torch.float64 if type(value) is float else None)
    if isinstance(value, dict):
        return _text(f"{type(value).__name__} of {sorted(map(repr, value))}")
    return _text(f"{type(value).__name__} of {len(value)}" if isinstance(value, list | tuple) else repr(value))


def _text(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)
