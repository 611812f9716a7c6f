"""The arguments of ``initialize()`` that are objects of the caller: one error for each that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from zerobench.engine.errors import ConfigError


def checked_model(model: Any) -> nn.Module:
    """The model, which no other library has sharded.

    Raises:
        ConfigError: it is not.
    """
    if model is None:
        raise ConfigError("deepspeed.initialize() has no model; pass model=")
    if not isinstance(model, nn.Module):
        raise _refused("model", model, "a torch.nn.Module")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh"):
            raise ConfigError(
                f"parameter {name!r} is a DTensor, as of fully_shard() or tensor parallelism; the engine shards the "
                "model itself, so give the model before that"
            )
    return model


def check_objects(optimizer: Any, lr_scheduler: Any, training_data: Any) -> None:
    """Refuse what is no optimizer, no schedule and no dataset.

    Raises:
        ConfigError: with the argument, what was given, and what is expected.
    """
    if not (optimizer is None or hasattr(optimizer, "param_groups") or callable(optimizer) or _is_dummy(optimizer)):
        raise _refused("optimizer", optimizer, "a torch optimizer, or a callable that makes one of parameters")
    if not (lr_scheduler is None or hasattr(lr_scheduler, "step") or callable(lr_scheduler) or _is_dummy(lr_scheduler)):
        raise _refused("lr_scheduler", lr_scheduler, "a schedule, or a callable that makes one of an optimizer")
    if isinstance(training_data, DataLoader | str) or not (training_data is None or _is_data(training_data)):
        raise _refused("training_data", training_data, "a dataset, such as that of a DataLoader")


def listed(given: Any) -> list[Any]:
    """Parameters or groups; ``params`` of a group may be an iterator or one tensor, and parameters may come with their
    names, as torch's optimizers allow.

    Raises:
        ConfigError: something else is among them.
    """
    return [{**each, "params": _of_group(each)} if isinstance(each, dict) else each for each in _parameters(given)]


def _of_group(group: dict[str, Any]) -> list[Any]:
    if "params" not in group:
        raise ConfigError(f"a group of model_parameters has no 'params', only {', '.join(map(repr, group))}")
    given = group["params"]
    return [given] if isinstance(given, Tensor) else _parameters(given)


def _parameters(given: Any) -> list[Any]:
    """A list of parameters or groups, without the names that ``named_parameters()`` gives."""
    if isinstance(given, Tensor | dict | str) or not isinstance(given, Iterable):
        raise _refused("model_parameters", given, "an iterable of parameters, as of model.parameters(), or of groups")
    found = [each[1] if _is_named(each) else each for each in given]
    for each in found:
        if not isinstance(each, Tensor | dict):
            raise _refused("model_parameters", each, "an iterable of parameters or of groups", "have something")
    return found


def _is_named(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and torch.is_tensor(given[1])


def _is_dummy(given: Any) -> bool:
    """Accelerate's stand-in for what the configuration has."""
    return type(given).__name__ in ("DummyOptim", "DummyScheduler")


def _is_data(given: Any) -> bool:
    return hasattr(given, "__getitem__") or hasattr(given, "__iter__")


def _refused(name: str, given: Any, expected: str, says: str = "is") -> ConfigError:
    what = f"the class {given.__name__}" if isinstance(given, type) else f"of type {type(given).__name__}"
    return ConfigError(f"{name} of deepspeed.initialize() {says} {what}; give {expected}")
