"""``deepspeed.runtime.utils``: seeds, folders, devices and memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

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
