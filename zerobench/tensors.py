"""Tensors with storages of their own, without wrappers such as a DTensor; and the bytes of a tensor's values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PLAIN = {Tensor, nn.Parameter}  # they wrap nothing; torch takes long to say so


def unwrapped(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors; if one wraps others, those instead: of a DTensor its local part."""
    for tensor in tensors:
        if type(tensor) in _PLAIN:
            yield tensor
        elif is_traceable_wrapper_subclass(tensor):
            parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
            yield from unwrapped(part for part in parts if isinstance(part, Tensor))  # not a DTensor's device mesh
        else:
            yield tensor


def bytes_of(tensor: Tensor) -> Tensor:
    """The values in their order, as bytes.

    A tensor of one element counts as contiguous whatever its stride, which a view as bytes refuses.
    """
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
