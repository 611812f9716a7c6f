"""``deepspeed.runtime.utils`` and ``deepspeed.utils``: seeds, folders, devices, memory, and lists of tensors."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from zerobench.compat.accelerator.accelerator import get_accelerator
from zerobench.compat.profiling.memory import see_memory_usage
from zerobench.compat.zero.status import ZeroParamStatus, is_zero_param

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
        moved = [move_to_device(value, device, criterion_func) for value in item]
        return moved if isinstance(item, list) else tuple(moved)
    return item


def copy_to_device(item: Any, device: torch.device | str, criterion_func: Callable[[Any], bool]) -> Any:
    """``item`` with copies on a device of the tensors that the criterion accepts."""
    return move_to_device(item, device, criterion_func)


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


def is_model_parallel_parameter(p: Any) -> bool:
    """Whether the caller has marked a parameter as one of model parallelism."""
    return bool(getattr(p, "model_parallel", False) or getattr(p, "tensor_model_parallel", False))


def get_inactive_params(param_list: Iterable[Any]) -> list[Any]:
    """The parameters of stage 3 that are not whole here."""
    return [each for each in param_list if is_zero_param(each) and each.ds_status is ZeroParamStatus.NOT_AVAILABLE]


def align_dense_tensors(tensor_list: list[torch.Tensor], alignment: int) -> list[torch.Tensor]:
    """The tensors, and zeros up to a multiple of ``alignment`` if they do not end at one."""
    missing = -sum(each.numel() for each in tensor_list) % alignment
    return [*tensor_list, tensor_list[0].new_zeros(missing)] if missing else tensor_list


class DummyOptim:
    """Parameters as one group, for code that wants an optimizer to read groups from."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": params}]


def recursive_getattr(model: nn.Module, module_name: str) -> Any:
    """The attribute of a dotted name."""
    return operator.attrgetter(module_name)(model)


def recursive_setattr(model: nn.Module, module_name: str, module: Any) -> None:
    """Set the attribute of a dotted name."""
    above, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, above) if above else model, name, module)
