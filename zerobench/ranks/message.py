"""Messages: tasks and results as bytes, by pickle with a shortcut for tensors.

pickle takes about 100 microseconds for a tensor, there and back; a result may hold thousands. These bytes travel only
between a pool and its own workers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zerobench.tensors import bytes_of


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | Any:
        if type(value) is not Tensor or not _is_plain(value):
            return NotImplemented
        return _tensor, (bytearray(bytes_of(value).numpy()), value.dtype, tuple(value.shape))


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_complex()


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def encode(value: Any) -> bytes:
    """The value as bytes; a CPU tensor goes as its contiguous values, without its autograd history."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def decode(data: bytes) -> Any:
    """The value that :func:`encode` was given."""
    return pickle.loads(data)  # noqa: S301 - the bytes are this pool's own
