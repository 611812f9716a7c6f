"""Tensors as the storages behind them are seen: those that wrap others, such as a DTensor, taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def unwrapped(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors, and in place of one that wraps others those: of a DTensor its local part."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
            yield from unwrapped(part for part in parts if isinstance(part, Tensor))  # not a DTensor's device mesh
        else:
            yield tensor
