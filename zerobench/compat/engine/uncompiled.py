"""torch.compile has no effect at stage 3: the compiler cannot see that parameters are gathered and resharded."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn

from zerobench.compat.config import Settings
from zerobench.compat.log import notice


def without_compile(model: nn.Module, settings: Settings) -> nn.Module:
    """At stage 3 the module that torch.compile was given; compiled parts of it run as they are, under their names."""
    if settings.engine["zero_optimization"]["stage"] < 3:
        return model
    found = [part for part in model.modules() if _take_back(part)]
    if found:
        notice("torch.compile has no effect at stage 3")
    original = getattr(model, "_orig_mod", None)
    return original if isinstance(original, nn.Module) else model


def _take_back(part: nn.Module) -> bool:
    """Undo ``torch.compile(part)`` or ``part.compile()``; whether there was one."""
    original, in_place = getattr(part, "_orig_mod", None), part._compiled_call_impl is not None
    part._compiled_call_impl = None
    if isinstance(original, nn.Module):
        part.forward = original.__call__
    return in_place or isinstance(original, nn.Module)


def eagerly() -> AbstractContextManager[Any]:
    """Within it, functions and methods that torch.compile was given run as they are.

    Raises:
        RuntimeError: torch.compile was given the engine that calls this.
    """
    if torch.compiler.is_dynamo_compiling():
        raise RuntimeError(_REASON)
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes seconds
        return nullcontext()
    try:
        stance = torch.compiler.set_stance("force_eager")
    except RuntimeError as error:
        raise RuntimeError(_REASON) from error
    return _Eager(stance)


class _Eager:
    """The stance of torch's compiler, which is one for the process, until the last open block ends.

    If one backward runs through two engines, the block of the first one ends before that of the second. The second one
    met the stance of the first one: if it put that back, the process would never compile again.
    """

    _open: ClassVar[list[_Eager]] = []
    _outermost: ClassVar[AbstractContextManager[Any]]

    def __init__(self, stance: AbstractContextManager[Any]) -> None:
        self._stance = stance

    def __enter__(self) -> None:
        if not self._open:
            _Eager._outermost = self._stance
        self._open.append(self)

    def __exit__(self, *_: object) -> None:
        self._open.remove(self)
        if not self._open:
            self._outermost.__exit__(None, None, None)


_REASON = (
    "torch.compile was given an engine at stage 3, where it has no effect; leave it out, or give it the model before "
    "initialize()"
)
