"""Function transforms of torch.func around a forward: the engine's own work stays outside them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def outside_transforms(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let a function run as if no transform were active, such as ``torch.func.jvp``, which refuses writes to the
    memory of parameters; torch's operators do so by the same context."""

    @functools.wraps(function)
    def outside(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if torch._C._functorch.peek_interpreter_stack() is None:
            return function(*args, **kwargs)
        with temporarily_clear_interpreter_stack():
            return function(*args, **kwargs)

    return outside
