"""Counts the calls that make the host wait for the device, on a CPU too, where they wait for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from zerobench.dispatch import DispatchMode

#: Methods that bring a tensor's values to the host.
_READINGS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__", "__contains__")
#: Calls that wait for work of the device.
_FENCES = (
    (torch.cuda, "synchronize"),
    (torch.cuda.Stream, "synchronize"),
    (torch.cuda.Event, "synchronize"),
)
#: Operations that need a value, or whose result's size depends on one.
_OPERATIONS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero")


class _Operations(DispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().partition(".")[0]
        if name in _OPERATIONS or (name == "aten::_to_copy" and _to_host(args[0], **(kwargs or {}))):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def _to_host(
    source: Tensor, *, dtype: torch.dtype | None = None, device: Any = None, non_blocking: bool = False, **given: Any
) -> bool:
    """Whether it is a copy to the CPU that the host waits for; on a CPU a copy to another dtype is taken for a cast."""
    cast = source.device.type == "cpu" and dtype not in (None, source.dtype)
    return device is not None and device.type == "cpu" and not non_blocking and not cast


@contextmanager
def waits() -> Iterator[list[str]]:
    """Yield a list that receives the name of each such call in the ``with`` block."""
    found: list[str] = []
    with ExitStack() as stack:
        for owner, name in (*((Tensor, each) for each in _READINGS), *_FENCES):
            stack.enter_context(mock.patch.object(owner, name, _noted(getattr(owner, name), name, found)))
        stack.enter_context(_Operations(found))
        yield found


def _noted(call: Callable[..., Any], name: str, found: list[str]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(name)
        return call(*args, **kwargs)

    return noted
