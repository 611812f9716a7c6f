"""Outputs of a forward: tensors in containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from torch import Tensor


def tensors_in(outputs: Any) -> Iterator[Tensor]:
    """The tensors in nested dicts, lists, tuples and dataclasses."""
    if isinstance(outputs, Tensor):
        yield outputs
        return
    inner: Any = ()
    if isinstance(outputs, Mapping):
        inner = outputs.values()
    elif isinstance(outputs, list | tuple):
        inner = outputs
    elif dataclasses.is_dataclass(outputs):
        inner = [getattr(outputs, field.name, None) for field in dataclasses.fields(outputs)]
    yield from chain.from_iterable(map(tensors_in, inner))
