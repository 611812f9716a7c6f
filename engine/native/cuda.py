"""The CUDA kernels, built for the architecture of the current device.

nvcc links its own runtime into the library, not torch's. Both runtimes work in the device's primary context, and a
stream is a handle of that context, so each runtime can use the other's streams and memory.
"""

from __future__ import annotations

import ctypes
import os

import torch

from zerobench.engine.native import building

# Against the effects of a fast build: fusing separate operations, flushing subnormals, inexact quotients and roots. The
# last three are nvcc's defaults; stated here they override the environment.
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
    "--threads=0",  # compile the sources in parallel
)


def architecture(index: int) -> str:
    """The architecture of one device, in nvcc's notation."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def recipe(architecture: str) -> building.Recipe:
    """How to build the library for one architecture, with the nvcc of ``CUDA_HOME`` or the one on PATH.

    ``NVCC_PREPEND_FLAGS`` (such as a host compiler) come first; ``NVCC_APPEND_FLAGS`` are ignored.
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
    """The CUDA runtime's message for an error code."""
    function = library["zerobench_error"]
    function.restype = ctypes.c_char_p
    return str(function(error).decode())
