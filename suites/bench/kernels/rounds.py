"""Rounds by turns: in each, every rival runs once, then what is measured."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.native import building, cpu

ROUNDS = 15
_WARMUP = 2

#: What a benchmark compares with: a name and what to run.
Rivals = Mapping[str, Callable[[], object]]


@cache
def _copy_function() -> Any:
    like = cpu.recipe(cpu.instruction_set())
    source = Path(__file__).with_name("copy.cpp")
    headers = next(path.parent for path in like.included if path.name == "parallel.h")
    recipe = building.Recipe(
        name="copy",
        title="the copy loop",
        compiler=like.compiler,
        flags=(*like.flags, f"-I{headers}"),
        sources=(source,),
        included=like.included,
    )
    function = building.load(recipe).copy
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    function.restype = None
    return function


def copy_loop(to: Tensor, source: Tensor) -> Callable[[], object]:
    """A plain loop of the kernels' compiler, flags and threads that copies fp32 values."""
    function = _copy_function()
    return lambda: function(to.data_ptr(), source.data_ptr(), to.numel(), torch.get_num_threads())


def by_turns(benchmark: Any, target: Callable[[], object], moved: int, rivals: Rivals, copied: int) -> None:
    """Time ``target`` with pytest-benchmark, the rivals before each of its rounds, and note medians and ratios.

    Args:
        moved: bytes that the target reads and writes.
        rivals: ``copy`` among them, which reads and writes ``copied`` bytes.
    """
    times: dict[str, list[float]] = {name: [] for name in rivals}

    def before() -> None:
        for name, rival in rivals.items():
            start = time.perf_counter()
            rival()
            times[name].append(time.perf_counter() - start)

    benchmark.pedantic(target, setup=before, rounds=ROUNDS, warmup_rounds=_WARMUP)
    own = benchmark.stats.stats.median
    bandwidth = moved / own
    copy = copied / statistics.median(times["copy"][_WARMUP:])
    benchmark.extra_info |= {"GB/s": round(bandwidth / 1e9, 2), "of copy": round(bandwidth / copy, 3)}
    for name, taken in times.items():
        quartiles = statistics.quantiles(taken[_WARMUP:], n=4)
        benchmark.extra_info[f"{name}, ms"] = [round(1e3 * q, 2) for q in quartiles]
        benchmark.extra_info[f"{name} / kernel"] = round(quartiles[1] / own, 3)
    quartiles = statistics.quantiles(benchmark.stats.stats.data, n=4)
    print(f"\n{benchmark.name}: ms {[round(1e3 * q, 2) for q in quartiles]}, {benchmark.extra_info}")
