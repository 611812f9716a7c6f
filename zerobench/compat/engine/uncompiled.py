"""torch.compile has no effect at stage 3: the compiler cannot see that parameters are gathered and resharded."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

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
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    except RuntimeError as error:
        raise RuntimeError(_REASON) from error
    return stance


_REASON = (
    "torch.compile was given an engine at stage 3, where it has no effect; leave it out, or give it the model before "
    "initialize()"
)
