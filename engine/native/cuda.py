"""The CUDA kernels, built for the architecture of the device at hand.

nvcc links its runtime into the library. That it is not torch's own does no harm: both runtimes work in the device's
primary context, and a stream is a handle of that context, so what one has made the other can use.
"""

from __future__ import annotations

import ctypes
import os

import torch

from zerobench.engine.native import building

# What a fast build would do otherwise: fuse what is written as two operations, flush subnormals, round quotients and
# roots as it likes. The last three are nvcc's defaults, said here to have the last word.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-Xcompiler",
    "-fPIC",
    "-fmad=false",
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
)


def architecture(index: int) -> str:
    """The architecture of one device, as nvcc names it."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def recipe(architecture: str) -> building.Recipe:
    """How the library for one architecture is made, with the nvcc of ``CUDA_HOME`` or the one on PATH.

    What ``NVCC_PREPEND_FLAGS`` says, a host compiler for one, comes first; ``NVCC_APPEND_FLAGS`` is not heeded.
    """
    folder = building.sources()
    home = os.environ.get("CUDA_HOME")
    nvcc = building.find([f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc"], "nvcc")
    return building.Recipe(
        name=f"cuda-{architecture}",
        title=f"the CUDA kernels ({architecture})",
        compiler=(nvcc, *building.words("NVCC_PREPEND_FLAGS")),
        flags=(*_FLAGS, f"-arch={architecture}"),
        sources=tuple(sorted((folder / "cuda").glob("*.cu"))),
        included=(folder / "dtype.h", *sorted((folder / "cuda").glob("*.cuh"))),
    )


def message(library: ctypes.CDLL, error: int) -> str:
    """What the CUDA runtime says of an error code."""
    function = library["zerobench_error"]
    function.restype = ctypes.c_char_p
    return str(function(error).decode())
