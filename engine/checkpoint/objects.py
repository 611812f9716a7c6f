"""Objects that client states hold besides plain data: tensors, NumPy's arrays and numbers, paths, dtypes, namespaces.

Each has an encoder to JSON and a decoder. Neither calls code of the value's own, so a file can make no other object.
"""

from __future__ import annotations

import base64
import datetime as dt
import sys
from argparse import Namespace
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path, PosixPath
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Codec(NamedTuple):
    """The forms of one kind of object: its parts, which are encoded further, and the object of these parts."""

    parts: Callable[[Any], Any]
    whole: Callable[[Any], Any]


def kind_of(value: object) -> str | None:
    """The name of the codec of ``value``; None if it has none. A subclass has none, because its type would be lost."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        exact = type(value) is numpy.ndarray or isinstance(value, numpy.generic)
        return "numpy" if exact and value.dtype.kind in "biufcSU" else None
    return _KINDS.get(type(value))


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _tensor(value: Tensor) -> dict[str, Any]:
    plain = value.detach().cpu().contiguous()
    data = bytes(plain.reshape(-1).view(torch.uint8).untyped_storage()) if plain.numel() else b""
    raw = data[plain.storage_offset() * plain.element_size() :][: plain.numel() * plain.element_size()]
    grad = value.requires_grad
    return {"dtype": str(plain.dtype), "shape": list(plain.shape), "requires_grad": grad, "data": _bytes(raw)}


def _to_tensor(parts: Any) -> Tensor:
    dtype, raw = _dtype(parts["dtype"]), base64.b64decode(parts["data"], validate=True)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(parts["shape"]).requires_grad_(parts["requires_grad"])


def _to_parameter(parts: Any) -> nn.Parameter:
    return nn.Parameter(_to_tensor({**parts, "requires_grad": False}), requires_grad=parts["requires_grad"])


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name!r} is no dtype of torch")
    return found


def _array(value: Any) -> dict[str, Any]:
    shape = None if not hasattr(value, "setflags") or value.__class__.__name__ != "ndarray" else list(value.shape)
    return {"dtype": value.dtype.str, "shape": shape, "data": _bytes(value.tobytes())}


def _to_array(parts: Any) -> Any:
    import numpy as np

    flat = np.frombuffer(base64.b64decode(parts["data"], validate=True), dtype=np.dtype(parts["dtype"])).copy()
    return flat[0] if parts["shape"] is None else flat.reshape(parts["shape"])


CODECS: dict[str, Codec] = {
    "tensor": Codec(_tensor, _to_tensor),
    "parameter": Codec(_tensor, _to_parameter),
    "numpy": Codec(_array, _to_array),
    "bytes": Codec(_bytes, lambda text: base64.b64decode(text, validate=True)),
    "complex": Codec(lambda value: (value.real, value.imag), lambda pair: complex(*pair)),
    "set": Codec(list, set),
    "frozenset": Codec(list, frozenset),
    "deque": Codec(lambda value: (list(value), value.maxlen), lambda pair: deque(*pair)),
    "ordered_dict": Codec(lambda value: list(value.items()), OrderedDict),
    "namespace": Codec(lambda value: dict(vars(value)), lambda names: Namespace(**names)),
    "simple_namespace": Codec(lambda value: dict(vars(value)), lambda names: SimpleNamespace(**names)),
    "path": Codec(str, Path),
    "size": Codec(list, torch.Size),
    "dtype": Codec(str, _dtype),
    "device": Codec(str, torch.device),
    "datetime": Codec(dt.datetime.isoformat, dt.datetime.fromisoformat),
    "timedelta": Codec(
        lambda value: (value.days, value.seconds, value.microseconds), lambda parts: dt.timedelta(*parts)
    ),
}
_KINDS: dict[type, str] = {
    Tensor: "tensor",
    nn.Parameter: "parameter",
    bytes: "bytes",
    complex: "complex",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
    OrderedDict: "ordered_dict",
    Namespace: "namespace",
    SimpleNamespace: "simple_namespace",
    PosixPath: "path",
    torch.Size: "size",
    torch.dtype: "dtype",
    torch.device: "device",
    dt.datetime: "datetime",
    dt.timedelta: "timedelta",
}
