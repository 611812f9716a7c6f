"""Values as JSON and back, with their types: plain data, and the objects of objects.py."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from zerobench.engine.checkpoint.objects import CODECS, kind_of
from zerobench.engine.errors import CheckpointError

#: The key of an object that stands for a value that JSON does not have.
_TYPE = "$type"


def encode(value: Any, where: str) -> Any:
    """JSON of ``value``; :func:`decode` returns an equal value of the same types.

    Args:
        value: None, a bool, int, float or str, an object that objects.py knows, or a list, tuple, dict or Counter of
            such values. Keys may be any of these that can be hashed.
        where: the value's name, for the error.

    Raises:
        CheckpointError: a value has another type.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else _tagged("float", repr(value))
    if kind is list:
        return _items(value, where)
    if kind is tuple:
        return _tagged("tuple", _items(value, where))
    if kind is dict and all(type(key) is str for key in value) and _TYPE not in value:
        return {key: encode(each, f"{where}[{key!r}]") for key, each in value.items()}
    if kind in (dict, Counter):
        return _tagged("counter" if kind is Counter else "dict", _items(value.items(), where))
    known = kind_of(value)
    if known is not None:
        return _tagged(known, encode(CODECS[known].parts(value), where))
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold, because it needs pickle; "
        "it holds numbers, strings, bytes, tensors, NumPy arrays, and lists, tuples, sets, dicts and namespaces of "
        "them: convert it, for example by vars() or state_dict()"
    )


def decode(value: Any) -> Any:
    """The value that :func:`encode` was given.

    Raises:
        CheckpointError: ``value`` is not the result of :func:`encode`.
    """
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _TYPE not in value:
        return {key: decode(each) for key, each in value.items()}
    try:
        kind, content = value[_TYPE], value["value"]
        return CODECS[kind].whole(decode(content)) if kind in CODECS else _DECODERS[kind](content)
    except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{value!r} is not a value of a checkpoint: {error}") from None


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_TYPE: kind, "value": value}


def _items(values: Iterable[Any], where: str) -> list[Any]:
    return [encode(each, f"{where}[{index}]") for index, each in enumerate(values)]


_DECODERS: dict[str, Any] = {
    "float": lambda text: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[text],
    "tuple": lambda items: tuple(decode(items)),
    "dict": lambda items: dict(decode(items)),
    "counter": lambda items: Counter(dict(decode(items))),
}
