"""The wrong engines without their promise of bits, by their own names: ``...unpromised:ForgetsToAverage``."""

from __future__ import annotations

from importlib import import_module

from zerobench.subjects.reference import Reference
from zerobench.suites.meta.mutants.historical import catalogue

_NAMES = (
    "autocast",
    "boundaries",
    "gradient_edits",
    "ignored",
    "late",
    "offload",
    "order",
    "plain",
    "rare",
    "recovery",
    "repeated",
    "resting_momentum",
    "scheduler",
    "schedules",
    "shared",
    "structure",
    "training_loop",
    "watched",
    "zeros",
)
_PLAIN = tuple(import_module(f"{__package__}.{name}") for name in _NAMES)
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
