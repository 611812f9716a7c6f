"""Declaring operations as torch operators: one schema, one definition, one native version, one fake each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack
from torch._ops import OpOverload
from torch.autograd.graph import increment_version

from zerobench.engine.native import CODES, implementation

_LIBRARY = torch.library.Library("zerobench", "DEF")  # type: ignore[no-untyped-call]


def operator(
    schema: str, *, check: Callable[..., Any], definition: Callable[..., Any], native: Callable[..., Any]
) -> Callable[..., Any]:
    """Declare ``zerobench::`` ``schema`` for CPU and CUDA, and return a function that calls the operator.

    The function goes through torch's dispatcher only if a mode observes the call or torch.compile traces it: for a list
    of tensors, dispatching takes the host longer than starting the kernel.

    Args:
        schema: name, arguments and in-place changes.
        check: called with the same arguments before either implementation; raises if they do not match. It is also
            the fake implementation, so its result is like the operation's.
        definition: the specification, in torch.
        native: calls the kernel.
    """
    name = schema.partition("(")[0]

    def compute(*arguments: Any) -> Any:
        check(*arguments)
        if implementation() != "native":
            return definition(*arguments)
        for i in written:
            if arguments[i] is not None:
                increment_version(arguments[i])
        return native(*arguments)

    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, compute, "CPU")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(name, compute, "CUDA")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"zerobench::{name}", check, lib=_LIBRARY)
    overload: OpOverload = getattr(torch.ops.zerobench, name).default
    written = _written(overload)

    def invoke(*arguments: Any) -> Any:
        observed = _len_torch_dispatch_stack() or torch.compiler.is_compiling()
        return overload(*arguments) if observed else compute(*arguments)

    return invoke


def _written(overload: OpOverload) -> list[int]:
    """The positions of the arguments that the operation changes; autograd does not see a kernel's writes."""
    arguments = enumerate(overload._schema.arguments)
    return [i for i, argument in arguments if argument.alias_info and argument.alias_info.is_write]


def flat(name: str, tensor: Tensor, like: Tensor, dtypes: tuple[torch.dtype, ...] = tuple(CODES)) -> None:
    """Raise unless ``tensor`` is flat, contiguous, as long as ``like``, on its device and of one of ``dtypes``."""
    if tensor.dim() != 1 or tensor.numel() != like.numel() or not tensor.is_contiguous():
        given = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
        raise ValueError(f"{name}: expected {like.numel()} elements, flat and contiguous; got {given}")
    if tensor.dtype not in dtypes or tensor.device != like.device:
        wanted = f"{' or '.join(map(str, dtypes))} on {like.device}"
        raise ValueError(f"{name}: expected {wanted}; got {tensor.dtype} on {tensor.device}")
