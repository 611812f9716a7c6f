"""The CUDA kernels on a machine without a GPU: their own sources, compiled as C++, thread after thread on the CPU.

That holds what the sources say to the definitions: indices, tails, alignment, the order of a warp's sum, how grids are
started. It says nothing of nvcc, of the GPU's arithmetic, or of threads that run at once: the place ``cuda`` does.

The headers beside this file stand for CUDA's, a launch becomes a call, and nothing else of a source is changed.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from zerobench.engine import KernelError
from zerobench.engine.native import Kernels, building, cpu, cuda

_HEADERS = Path(__file__).parent

#: A vector at no multiple of its size, or an index past an array's end, ends the process at once.
_CHECKED = ("-fsanitize=alignment,bounds,signed-integer-overflow", "-fsanitize-undefined-trap-on-error")
#: Nothing is optimized, for building takes longer than running.
_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", *_CHECKED)

_LAUNCH = re.compile(r"(\w+(?:<[^<>]*>)?)<<<(.+?)>>>\(", re.DOTALL)
_CALL = r"simulated::Launch(\2)([](const auto&... given) { \1(given...); }, "


class Simulated(Kernels):
    """CUDA kernels of a library made by ``library``, called in the way of those for the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library, "cuda")
        self.functions = {name: partial(self._start, name, function) for name, function in self.functions.items()}

    def _start(self, name: str, function: Callable[..., int], *arguments: object) -> None:
        *given, _threads = arguments
        if error := function(*given, 0, None):
            raise KernelError(f"the CUDA kernel {name} failed: {cuda.message(self.library, error)}")


@cache
def simulated_kernels() -> Simulated:
    """The CUDA kernels of this checkout."""
    return Simulated(library())


def library() -> ctypes.CDLL:
    """The CUDA sources compiled for the CPU, as one, which takes half the time; from the cache or built now.

    Raises:
        KernelError: see building.load.
    """
    with TemporaryDirectory() as directory:
        folder = Path(directory, "kernels")
        shutil.copytree(building.sources(), folder)
        values, whole = folder / "cuda" / "values.cuh", folder / "cuda" / "whole.cpp"
        sources = [_rewritten(path) for path in sorted((folder / "cuda").glob("*.cu"))]
        whole.write_text("".join(['#include "../cpu/convert.h"\n', *sources]), encoding="utf-8")
        values.write_text(_rewritten(values), encoding="utf-8")
        recipe = building.Recipe(
            name="cuda-simulated",
            title="the CUDA kernels for a simulation",
            compiler=cpu.recipe("plain").compiler,
            flags=(*_FLAGS, f"-I{_HEADERS}"),
            sources=(whole,),
            included=(values, folder / "dtype.h", folder / "cpu" / "convert.h", *sorted(_HEADERS.glob("*.h"))),
        )
        return building.load(recipe)


def _rewritten(source: Path) -> str:
    """CUDA C++ in which a launch is a call."""
    return _LAUNCH.sub(_CALL, source.read_text(encoding="utf-8"))
