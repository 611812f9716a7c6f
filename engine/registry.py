"""The registry: the live engine of each parameter."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

_engines = WeakIdKeyDictionary()  # parameter -> weak reference to its engine
_numbers = WeakIdKeyDictionary()  # parameter -> its number, which is the same on every rank
_count = itertools.count()


def register(module: nn.Module, engine: object) -> None:
    """Record that the module's parameters belong to this engine; their earlier engines learn that they lose them."""
    parameters = {id(parameter): parameter for parameter in module.parameters()}
    for earlier in engines_of(parameters.values()):
        earlier.lose(parameters.keys())
    for parameter in parameters.values():
        _engines[parameter] = weakref.ref(engine)
        give_number(parameter)


def give_number(parameter: nn.Parameter) -> None:
    """Put the parameter last in the order of :func:`in_one_order`; every rank calls it for its parameters in turn."""
    _numbers[parameter] = next(_count)


def in_one_order(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Parameters in an order that every rank has, though each rank iterates over a set in its own: those without a
    number as they are given, and the others by their numbers."""
    return sorted(parameters, key=lambda each: int(_numbers.get(each, -1)))  # type: ignore[no-untyped-call]


def engines_of(parameters: Iterable[nn.Parameter]) -> list[Any]:
    """The living engines of these parameters, each once."""
    return list({id(each): each for each in (engine_of(p) for p in parameters if has_engine(p))}.values())


def engine_of(parameter: nn.Parameter) -> Any:
    """The engine that the parameter belongs to.

    Raises:
        ValueError: the parameter belongs to no engine, or its engine has been deleted.
    """
    reference = _engines.get(parameter)  # type: ignore[no-untyped-call]
    engine = reference() if reference is not None else None
    if engine is None:
        shape = tuple(parameter.shape)
        raise ValueError(f"a tensor of shape {shape} is not a parameter of a living engine's module")
    return engine


def has_engine(parameter: nn.Parameter) -> bool:
    """Whether the parameter belongs to a living engine."""
    reference = _engines.get(parameter)  # type: ignore[no-untyped-call]
    return reference is not None and reference() is not None
