"""Frozen values as JSON and back: each level is checked against its type."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, Literal

from zerobench.errors import UsageError, unknown

#: The ranges of the numbers that the harness itself depends on; the engine or the model checks the others.
_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("world", "replicate", "steps", "micro_batch", "accumulation"), (1, math.inf)),
    "stage": (0, 3),
}


def sparse(value: Any) -> Any:
    """The value as JSON takes it; fields at their default are left out."""
    if isinstance(value, tuple):
        return [sparse(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    out = {}
    for item in dataclasses.fields(value):
        current = getattr(value, item.name)
        default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        if item.name == "kind" or current != default:
            out[item.name] = sparse(current)
    return out


def decode(hint: Any, raw: Any, where: str) -> Any:
    """Build the value of type ``hint`` from parsed JSON, checking every level; ``where`` names it in an error.

    Raises:
        UsageError: a value has another type, or a number is out of its range.
    """
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _decode_dataclass(hint, raw, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(hint), raw, where)
    if origin is tuple and isinstance(raw, list):
        args = typing.get_args(hint)
        kinds = [args[0]] * len(raw) if args[-1] is Ellipsis else list(args)
        if len(kinds) == len(raw):
            pairs = enumerate(zip(kinds, raw, strict=True))
            return tuple(decode(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)
    if origin is Literal and raw in typing.get_args(hint):
        return raw
    if hint is float and isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(hint, type) and type(raw) is hint:
        return raw
    expected = " or ".join(map(repr, typing.get_args(hint))) if origin is Literal else getattr(hint, "__name__", hint)
    raise UsageError(f"{where}: expected {expected}, got {raw!r}")


def _decode_dataclass(hint: type[Any], raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise UsageError(f"{where}: expected an object, got {raw!r}")
    hints = _hints(hint)  # type: ignore[arg-type]  # mypy: a type is hashable
    for name in raw:
        if name not in hints:
            raise unknown(f"field of {where}", name, hints)
    values = {name: decode(hints[name], value, f"{where}.{name}") for name, value in raw.items()}
    for name, value in values.items():
        if name in _RANGES:
            _demand_range(value, *_RANGES[name], f"{where}.{name}")
    return hint(**values)


def _demand_range(value: float, least: float, most: float, where: str) -> None:
    if not least <= value <= most:
        expected = f"at least {least}" if most == math.inf else f"{least} to {most}"
        raise UsageError(f"{where}: expected {expected}, got {value}")


@functools.cache
def _hints(of: Any) -> dict[str, Any]:
    return typing.get_type_hints(of)


def _decode_union(members: tuple[Any, ...], raw: Any, where: str) -> Any:
    if raw is None and type(None) in members:
        return None
    for member in members:
        named = isinstance(raw, dict) and raw.get("kind") == getattr(member, "kind", None)
        if dataclasses.is_dataclass(member) and named:
            return decode(member, raw, where)
    rest = [m for m in members if m is not type(None) and not dataclasses.is_dataclass(m)]
    if rest:
        return decode(rest[0], raw, where)
    raise UsageError(f"{where}: expected an object whose kind is gpt, vit or odd, got {raw!r}")
