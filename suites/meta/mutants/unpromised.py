"""The wrong engines without their promise of bits, by their own names: ``...unpromised:ForgetsToAverage``."""

from __future__ import annotations

from types import ModuleType

from zerobench.subjects.reference import Reference
from zerobench.suites.meta.mutants import (
    ignored,
    late,
    offload,
    order,
    plain,
    rare,
    recovery,
    schedules,
    shared,
    watched,
    zeros,
)
from zerobench.suites.meta.mutants.historical import catalogue

_PLAIN: tuple[ModuleType, ...] = (
    ignored,
    late,
    offload,
    order,
    plain,
    rare,
    recovery,
    schedules,
    shared,
    watched,
    zeros,
)
_MODULES = (*_PLAIN, *catalogue.MODULES)


def __getattr__(name: str) -> type[Reference]:
    """The mutant of this name, as an engine that promises no bits."""
    for module in _MODULES:
        mutant = getattr(module, name, None)
        if isinstance(mutant, type) and issubclass(mutant, Reference):
            made = type(name, (mutant,), {"promises_bits": False, "__module__": __name__})
            globals()[name] = made
            return made
    raise AttributeError(name)
