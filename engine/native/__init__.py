"""The native kernels: selected, built at first use, loaded and called.

``ZEROBENCH_KERNELS`` selects the implementation of engine/ops: ``native`` (the default) or ``torch`` (the definitions).
The engine never falls back silently from one to the other.
"""

from __future__ import annotations

import ctypes
import difflib
import functools
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.errors import KernelError
from zerobench.engine.native import building, cpu, cuda

_IMPLEMENTATIONS = ("native", "torch")

#: The dtypes that kernels read and write, by their numbers in C (kernels/dtype.h).
CODES: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_POINTER, _SIZE, _CODE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_DOUBLE = ctypes.c_double
_PIECES = [_POINTER, _CODE, _SIZE, _POINTER, _POINTER, _POINTER, _POINTER]
_RUNS = [_POINTER, _SIZE, _POINTER, _POINTER]
#: The arguments of each kernel, except the last ones: the number of threads, or device and stream.
_ARGUMENTS: dict[str, list[Any]] = {
    "adam_step": [_POINTER, _POINTER, _CODE, *[_POINTER] * 3, _CODE, *_RUNS],
    "sgd_step": [_POINTER, _POINTER, _CODE, *[_POINTER] * 2, _CODE, *_RUNS],
    "fold": [_POINTER, _CODE, _POINTER, _CODE, *[_SIZE] * 3, _CODE],
    "chunk_sumsq": [_POINTER, _CODE, *[_SIZE] * 2, _POINTER],
    "tree_sum": [_POINTER, _SIZE, _POINTER],
    "clip_factors": [*[_POINTER] * 3, _SIZE, _DOUBLE, _DOUBLE, _POINTER],
    "pack": _PIECES,
    "unpack": _PIECES,
}


@functools.cache
def implementation() -> str:
    """The value of ``ZEROBENCH_KERNELS``: ``native`` or ``torch``; read once.

    Raises:
        KernelError: it has any other value.
    """
    given = os.environ.get("ZEROBENCH_KERNELS", "") or "native"
    if given not in _IMPLEMENTATIONS:
        close = difflib.get_close_matches(given, _IMPLEMENTATIONS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        known = ", ".join(_IMPLEMENTATIONS)
        raise KernelError(f"ZEROBENCH_KERNELS is {given!r}, which is no implementation{hint} (known: {known})")
    return given


class Kernels:
    """The kernels of one shared library, ready to be called."""

    def __init__(self, library: ctypes.CDLL, device: str) -> None:
        place = [ctypes.c_int, ctypes.c_void_p] if device == "cuda" else [ctypes.c_int]
        self.functions: dict[str, Callable[..., Any]] = {}
        for name, arguments in _ARGUMENTS.items():
            function = library[f"zerobench_{name}"]
            function.argtypes = [*arguments, *place]
            function.restype = ctypes.c_int if device == "cuda" else None
            self.functions[name] = function
        self.library = library


@functools.cache
def on_cpu() -> Kernels:
    """The CPU kernels for this machine, built if necessary."""
    return Kernels(building.load(cpu.recipe(cpu.instruction_set())), "cpu")


@functools.cache
def on_cuda(index: int) -> Kernels:
    """The CUDA kernels for one device, built if necessary."""
    return Kernels(building.load(cuda.recipe(cuda.architecture(index))), "cuda")


def call(name: str, where: Tensor, *arguments: float | None) -> None:
    """Run a kernel on the device of ``where``; on CUDA in its current stream, without waiting.

    Raises:
        KernelError: a kernel could not be built or started.
    """
    device = where.device
    if device.type == "cpu":
        on_cpu().functions[name](*arguments, torch.get_num_threads())
        return
    index = device.index
    kernels = on_cuda(index)
    stream = torch._C._cuda_getCurrentRawStream(index)  # without an object around it
    with nullcontext() if torch.cuda.current_device() == index else torch.cuda.device(index):
        error = kernels.functions[name](*arguments, index, stream)
    if error:
        raise KernelError(
            f"the CUDA kernel {name} did not start on cuda:{index}: {cuda.message(kernels.library, error)}"
        )


@dataclass(frozen=True)
class Built:
    """Kernels that are ready to run: their target, the compiler's version text, the path of the library."""

    title: str
    compiler: str
    library: str


def prepare_kernels() -> list[Built]:
    """Build if necessary, and load, the kernels that this process may call; none if it uses the definitions.

    Raises:
        KernelError: no compiler, a failed build, a cache that cannot be written, or a wrong ``ZEROBENCH_KERNELS``.
    """
    if implementation() != "native":
        return []
    recipes = [cpu.recipe(cpu.instruction_set())]
    on_cpu()
    for index in range(torch.cuda.device_count()):
        on_cuda(index)
        recipes.append(cuda.recipe(cuda.architecture(index)))
    return [Built(recipe.title, recipe.version, str(recipe.library)) for recipe in dict.fromkeys(recipes)]


def describe_kernels() -> dict[str, str | None]:
    """The implementation of the engine's operations in this process.

    Returns:
        ``implementation``: native or torch; ``cpu``: the instruction set of the CPU kernels (avx512, avx2 or plain);
        ``cuda``: the architecture of the CUDA kernels (such as sm_90). None if the torch definitions compute, or if
        there is no such device.

    Raises:
        KernelError: ``ZEROBENCH_KERNELS`` has an unknown value.
    """
    native = implementation() == "native"
    gpu = native and torch.cuda.is_available()
    return {
        "implementation": implementation(),
        "cpu": cpu.instruction_set() if native else None,
        "cuda": cuda.architecture(torch.cuda.current_device()) if gpu else None,
    }
