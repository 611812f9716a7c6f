"""The simulation of CUDA computes as CUDA does if a kernel is right, and reports an error if it is wrong."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from zerobench.engine.native import building
from zerobench.suites.kernels import simulated

_SOURCE = """
#include "values.cuh"

// Every lane's number from another lane's, twice: a lane's slot must live until all have read it.
__global__ void shifted(int* out, int apart) {
  int value = static_cast<int>(thread_index());
  for (int turn = 0; turn < 2; ++turn) value = __shfl_down_sync(0xffffffffu, value, apart);
  out[thread_index()] = value;
}

__global__ void diverged(int* out) {
  if (threadIdx.x % 2 == 0) out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1, 1);
}

extern "C" int zerobench_shifted(int* out, int apart) {
  shifted<<<2, 64, 0, nullptr>>>(out, apart);
  return cudaGetLastError();
}

extern "C" int zerobench_diverged(int* out) {
  diverged<<<1, 32, 0, nullptr>>>(out);
  return cudaGetLastError();
}

extern "C" int zerobench_empty(int blocks, int threads) {
  diverged<<<blocks, threads, 0, nullptr>>>(nullptr);
  return cudaGetLastError();
}

extern "C" float zerobench_misaligned(const float* values) { return load<4>(values + 1).v[0]; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels above."""
    folder = tmp_path_factory.mktemp("kernels")
    shutil.copytree(building.sources(), folder, dirs_exist_ok=True)
    for path in (folder / "cuda").glob("*.cu"):
        path.unlink()
    (folder / "cuda" / "small.cu").write_text(_SOURCE, encoding="utf-8")
    with (
        mock.patch.object(building, "sources", return_value=folder),
        mock.patch.dict("os.environ", ZEROBENCH_CACHE=str(folder)),
    ):
        return simulated.library()


@pytest.mark.parametrize("apart", [1, 2, 16, 31])
def test_lanes_hand_on_their_values(library: ctypes.CDLL, apart: int) -> None:
    """A lane beyond the last of its warp keeps its own."""
    out = (ctypes.c_int * 128)()
    assert library.zerobench_shifted(out, apart) == 0

    def source(lane: int) -> int:
        return lane + apart if lane + apart < 32 else lane

    assert list(out) == [thread // 32 * 32 + source(source(thread % 32)) for thread in range(128)]


def test_a_warp_that_parts_is_an_error_once(library: ctypes.CDLL) -> None:
    """The next kernel runs."""
    assert library.zerobench_diverged((ctypes.c_int * 32)()) == 719
    test_lanes_hand_on_their_values(library, 1)


@pytest.mark.parametrize(("blocks", "threads"), [(0, 32), (-1, 32), (1, 0), (1, 1056)])
def test_a_grid_that_cannot_be_is_an_error(library: ctypes.CDLL, blocks: int, threads: int) -> None:
    assert library.zerobench_empty(blocks, threads) == 9


def test_a_misaligned_vector_ends_the_process(library: ctypes.CDLL) -> None:
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).zerobench_misaligned((ctypes.c_double * 4)())"
    done = subprocess.run([sys.executable, "-c", program, Path(library._name)], check=False)
    assert done.returncode == -signal.SIGILL
