"""``deepspeed.runtime.utils`` and ``deepspeed.utils``: seeds, folders, devices, memory, and parts of a list."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from zerobench.compat.accelerator import get_accelerator
from zerobench.compat.memory import see_memory_usage

_Function = TypeVar("_Function", bound=Callable[..., Any])


def set_random_seed(seed: int) -> None:
    """Seed Python, numpy if it is installed, and torch."""
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        pass
    else:
        np.random.seed(seed)  # noqa: NPY002  # the generator that scripts use
    torch.manual_seed(seed)


def ensure_directory_exists(filename: str | Path) -> None:
    """Make the folder of a file."""
    Path(filename).parent.mkdir(parents=True, exist_ok=True)


def move_to_device(item: Any, device: torch.device | str, criterion_func: Callable[[Any], bool] | None = None) -> Any:
    """``item`` with its tensors on a device; only those that the criterion accepts."""
    if criterion_func(item) if criterion_func is not None else hasattr(item, "to"):
        return item.to(device)
    if isinstance(item, dict):
        return {key: move_to_device(value, device, criterion_func) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return type(item)(move_to_device(value, device, criterion_func) for value in item)
    return item


def memory_status(msg: str, print_rank: int = -1, reset_max: bool = False) -> None:
    """Log the memory on one rank, or on all."""
    see_memory_usage(msg, force=True, ranks=(print_rank,))


def empty_cache() -> None:
    """Give the device's free memory back."""
    get_accelerator().empty_cache()


def noop_decorator(func: _Function) -> _Function:
    """The function itself."""
    return func


class noop_context(nullcontext[None]):  # DeepSpeed's name
    """A context without effect."""


def get_ma_status() -> int:
    """The device's bytes in use on rank 0; 0 on the others."""
    return 0 if dist.is_initialized() and dist.get_rank() else int(get_accelerator().memory_allocated())


def get_tensor_bytes(item: Any) -> int:
    """The bytes of the tensors in nested lists, tuples and dicts."""
    if isinstance(item, torch.Tensor):
        return item.numel() * item.element_size()
    values = item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ()
    return sum(map(get_tensor_bytes, values))


def filter_empty_parameters(params: Any) -> Any:
    """The parameters, or groups, without those that have no elements."""
    if not isinstance(params, list | tuple) or not params:
        return params
    if not isinstance(params[0], dict):
        return [each for each in params if each.numel()]
    groups = [{**group, "params": [each for each in group["params"] if each.numel()]} for group in params]
    return [group for group in groups if group["params"]]


def call_to_str(base: str, *args: Any, **kwargs: Any) -> str:
    """A call as text."""
    return f"{base}({', '.join([*map(repr, args), *(f'{key}={value!r}' for key, value in kwargs.items())])})"


def get_only_unique_item(items: Iterable[Any]) -> Any:
    """The one value that all items have.

    Raises:
        RuntimeError: they have several values, or there are none.
    """
    found = set(items)
    if len(found) != 1:
        raise RuntimeError(f"expected there to be only one unique element in {items}")
    return found.pop()


def prefix_sum_inc(weights: Iterable[Any]) -> list[Any]:
    """The sums up to each weight, this one included."""
    return list(itertools.accumulate(weights))


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """The bounds of parts of equal length; the first ones have one item more if there is a rest."""
    if num_items <= num_parts:
        return [min(part, num_items) for part in range(num_parts + 1)]
    length, rest = divmod(num_items, num_parts)
    return [part * length + min(part, rest) for part in range(num_parts + 1)]


def recursive_getattr(model: nn.Module, module_name: str) -> Any:
    """The attribute of a dotted name."""
    return operator.attrgetter(module_name)(model)


def recursive_setattr(model: nn.Module, module_name: str, module: Any) -> None:
    """Set the attribute of a dotted name."""
    above, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, above) if above else model, name, module)
