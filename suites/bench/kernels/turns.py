"""Turns: in each round the kernel and each of its rivals run once, and so does a copy of as many bytes."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zerobench.engine.native import building, cpu, describe_kernels
from zerobench.results import Json
from zerobench.suites.bench.kernels.workloads import Work, Workload, in_turn

ROUNDS = 15
_WARMUP = 2
#: The most bytes that a copy reads and writes; if a kernel moves more, the copy's time is scaled up.
_COPIED = 1 << 32
#: Bytes that are written before each turn on a CPU: more than a cache keeps of the turn before.
_FLUSHED = 1 << 28
#: Bytes for a GPU to move in a turn, and the most runs, so that launching costs nothing.
_MOVED_AT_ONCE, _AT_ONCE = 1 << 32, 100

KERNEL = "kernel"


def by_turns(workload: Workload, device: str, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of each round, of the kernel, of the copy and of every rival, by name."""
    copied = min(workload.moved, _COPIED)
    scale = {"copy": workload.moved / copied}
    copies = in_turn([_copy(copied, device) for _ in range(workload.sets)])
    everyone = {KERNEL: workload.work, "copy": copies, **workload.rivals}
    timers = {name: _timer(work, at_once(workload), device) for name, work in everyone.items()}
    turns = [{name: timer() for name, timer in timers.items()} for _ in range(_WARMUP + rounds)]
    return {name: [scale.get(name, 1.0) * turn[name] for turn in turns[_WARMUP:]] for name in timers}


def at_once(workload: Workload) -> int:
    """The number of runs in a GPU's turn, the same on each set of buffers."""
    return workload.sets * max(1, min(_AT_ONCE, _MOVED_AT_ONCE // workload.moved) // workload.sets)


def _timer(work: Work, times: int, device: str) -> Callable[[], float]:
    return partial(_flushed, work) if device == "cpu" else _graph(work, times)


def _flushed(work: Work) -> float:
    """Seconds of work with an empty cache and both cores to itself.

    torch's threads spin on for some milliseconds after their work, on the cores of the next turn. Writing the buffer,
    on one core, takes longer. A sleep would do as well, but after it a core is slow for as long.
    """
    _buffer().fill(0)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@cache
def _buffer() -> np.ndarray[Any, Any]:
    return np.empty(_FLUSHED, dtype=np.uint8)


def _graph(work: Work, times: int) -> Callable[[], float]:
    """Seconds of the work, of so many in one CUDA graph.

    It is replayed twice and the second time counts, by the GPU's own clock: that one is in the queue before it begins.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the set-up at first use, of every set of buffers, must not be captured
        for _ in range(times):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def run() -> float:
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000 / times

    return run


def _copy(moved: int, device: str) -> Work:
    """A copy of fp32 values: on a CPU a plain loop of the kernels' compiler, flags and threads.

    On a GPU it is a kernel of torch that reads and writes each element once and changes its sign. A graph's own copies
    of more than 256 MiB reach 65 % of its bandwidth on an H200; a stream's reach as much as the kernel.
    """
    to, source = (torch.rand(max(1, moved // 8), device=device) for _ in range(2))
    if device == "cuda":
        return partial(torch.neg, source, out=to)
    return lambda: _copy_loop()(to.data_ptr(), source.data_ptr(), to.numel(), torch.get_num_threads())


@cache
def _copy_loop() -> Any:
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


def result(name: str, n: int, moved: int, device: str, seconds: Mapping[str, Sequence[float]], against: str) -> Json:
    """A kernel of the results, beside one of its rivals."""
    own, other = (statistics.median(seconds[each]) for each in (KERNEL, against))
    computed = describe_kernels()
    return {
        "kernel": name,
        "implementation": computed[device] or computed["implementation"],
        "elements": n,
        "bytes": moved,
        "seconds": own,
        "bandwidth": moved / own,
        "ratio": other / own,
        "against": against,
    }
