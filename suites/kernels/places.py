"""Where kernels run here: each instruction set of this CPU, the CUDA sources simulated on it, and the GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch

from zerobench.engine.native import Kernels, building, cpu
from zerobench.suites.kernels import simulated

_SETS = list(cpu.INSTRUCTION_SETS)
_BEST = _SETS.index(cpu.instruction_set())


@cache
def cpu_kernels(instruction_set: str) -> Kernels:
    """The CPU kernels for one instruction set."""
    return Kernels(building.load(cpu.recipe(instruction_set)), "cpu")


@dataclass(frozen=True)
class Place:
    """One build of the kernels, ``name`` being the instruction set, ``simulated`` or ``cuda``."""

    name: str

    @property
    def device(self) -> str:
        """Where its tensors are."""
        return "cuda" if self.name == "cuda" else "cpu"

    @contextmanager
    def in_use(self, threads: int = 1) -> Iterator[None]:
        """Inside, native operations are computed by this build, on so many threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with self._computed_here() if self.device == "cpu" else nullcontext():
                yield
        finally:
            torch.set_num_threads(before)

    def kernels(self) -> Kernels:
        """Its library, built if need be."""
        return simulated.simulated_kernels() if self.name == "simulated" else cpu_kernels(self.name)

    def _computed_here(self) -> AbstractContextManager[Any]:
        return mock.patch("zerobench.engine.native.on_cpu", return_value=self.kernels())


def _missing(name: str) -> str:
    if name == "cuda":
        return "" if torch.cuda.is_available() else "there is no GPU"
    if name == "simulated":
        return "" if sys.platform == "linux" else "lanes are run by Linux's ucontext"
    return "" if _SETS.index(name) <= _BEST else f"this CPU does not have {name}"


#: Every build, those that cannot run here marked as skipped, with the reason.
PLACES = [
    pytest.param(Place(name), id=name, marks=[pytest.mark.skipif(bool(_missing(name)), reason=_missing(name) or "-")])
    for name in [*_SETS, "simulated", "cuda"]
]
