"""The CPU kernels: the same sources for each instruction set; the machine uses its best one."""

from __future__ import annotations

import torch

from zerobench.engine.native import building

# Contraction is off: the compiler must fuse only explicit multiply-adds. Math functions need not set errno or
# floating-point flags; otherwise a loop with a square root is not vectorised. No bit depends on these two.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")

#: Flags by instruction set; each set includes the one before.
INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {"plain": (), "avx2": _AVX2, "avx512": _AVX512}


def instruction_set() -> str:
    """The best instruction set that the CPU has, as torch sees it (``ATEN_CPU_CAPABILITY`` lowers both)."""
    found = torch.backends.cpu.get_cpu_capability().lower()
    return found if found in INSTRUCTION_SETS else "plain"


def recipe(instruction_set: str) -> building.Recipe:
    """How to build the library for one instruction set, with ``CXX`` or the first compiler found."""
    folder = building.sources()
    given = building.words("CXX")
    program = building.find(given[:1] or ["c++", "g++", "clang++"], "C++ compiler")
    return building.Recipe(
        name=f"cpu-{instruction_set}",
        title=f"the CPU kernels ({instruction_set})",
        compiler=(program, *given[1:]),
        flags=(*_FLAGS, *INSTRUCTION_SETS[instruction_set]),
        sources=tuple(sorted((folder / "cpu").glob("*.cpp"))),
        included=(folder / "dtype.h", *sorted((folder / "cpu").glob("*.h"))),
    )
