"""The loops of the CPU kernels: the calling thread's floating-point mode and a lack of memory change nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zerobench.engine.native import building, cpu
from zerobench.engine.ops import folding, sumsq, update
from zerobench.engine.ops.exact import single
from zerobench.suites.kernels.places import PLACES, Place
from zerobench.suites.kernels.test_equality import compare

#: Enough for two threads.
_MANY = 1 << 19

_PROGRAM = """
#include <atomic>
#include <cstdlib>
#include <new>

#include "sumsq.cpp"

static std::atomic<bool> exhausted{false};

void* operator new(std::size_t size) {
  void* memory = exhausted ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main() {
  const int64_t n = 4 * kGrain, chunk = 1 << 16;
  std::vector<float> ones(n, 1.0f);
  std::vector<double> sums(n / chunk);
  exhausted = true;
  zerobench_chunk_sumsq(ones.data(), kFp32, n / chunk, chunk, sums.data(), 4);
  exhausted = false;
  return std::count(sums.begin(), sums.end(), chunk) == n / chunk ? 0 : 1;
}
"""


def test_no_memory_for_threads(tmp_path: Path) -> None:
    """The calling thread then does all the work; the process does not end."""
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(_PROGRAM, encoding="utf-8")
    folder = building.sources() / "cpu"
    command = [*cpu.recipe("plain").compiler, "-std=c++17", "-pthread", f"-I{folder}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    assert subprocess.run([str(program)], check=False, stderr=subprocess.DEVNULL).returncode == 0


def _flushing(native: Callable[..., Any]) -> Callable[..., Any]:
    """The operation on a thread that takes subnormals for zeros, and still does afterwards."""

    def run(*arguments: Any) -> Any:
        if not torch.set_flush_denormal(True):
            pytest.skip("this CPU does not flush subnormals")
        try:
            answer = native(*arguments)
            assert float(torch.full((1,), 1.5e-38) * 0.5) == 0
        finally:
            torch.set_flush_denormal(False)
        return answer

    return run


@pytest.mark.parametrize("place", [place for place in PLACES if place.id in cpu.INSTRUCTION_SETS])
def test_flushing_subnormals_changes_nothing(place: Place) -> None:
    """On the calling thread and on those it starts, which inherit its mode."""
    tiny = torch.arange(_MANY, dtype=torch.int32).view(torch.float32)
    adam = tiny, tiny.flip(0), tiny.clone(), tiny.clone(), torch.zeros(_MANY, dtype=torch.bfloat16)
    whole = torch.tensor([0.5]), [0, _MANY, 0]
    scalars = single(1 - 1e-5, 0.0, 0.1, 0.999, 0.001, 0.03, 1e-8, -1e-3)
    compare(place, update.adam_definition, _flushing(update.adam_native), *adam, *whole, scalars, threads=2)
    sgd = tiny, tiny.flip(0), tiny.clone(), None, *whole
    compare(place, update.sgd_definition, _flushing(update.sgd_native), *sgd, single(0.1, 0.9, -0.1), threads=2)
    rows = torch.stack([tiny, -tiny.flip(0)])
    compare(place, folding.definition, _flushing(folding.native), tiny, rows, False, threads=2)
    compare(place, sumsq.definition, _flushing(sumsq.native), tiny, 1024, threads=2)
