"""The registry: the live engine of each parameter."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

_engines = WeakIdKeyDictionary()  # parameter -> weak reference to its engine


def register(module: nn.Module, engine: object) -> None:
    """Record that the module's parameters belong to this engine; their earlier engines learn that they lose them."""
    lost: dict[int, tuple[Any, set[int]]] = {}
    for parameter in module.parameters():
        if has_engine(parameter):
            earlier = engine_of(parameter)
            lost.setdefault(id(earlier), (earlier, set()))[1].add(id(parameter))
        _engines[parameter] = weakref.ref(engine)
    for earlier, parameters in lost.values():
        earlier.lose(parameters)


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
