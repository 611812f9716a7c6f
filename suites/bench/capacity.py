"""Capacity: the largest model that trains within a limit of memory on each rank.

On CUDA the limit is the caching allocator's. On a CPU it is the system's, on what a rank's process may take beyond what
it has when it starts (``RLIMIT_DATA``): device and host are one memory there, and only files are outside.
"""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from zerobench import models
from zerobench.bench import Measured
from zerobench.drive import run_step, start
from zerobench.ranks import Pool, RankFault
from zerobench.results import Json
from zerobench.scenario import Gpt, Scenario
from zerobench.subjects import load

#: Seconds for building a model and two steps of it.
TIME_LIMIT = 300.0

#: One of these is in what a rank says that has no memory left.
_FULL = ("OutOfMemoryError", "MemoryError", "allocate memory", "bad_alloc", "start new thread")

#: glibc's number.
_M_MMAP_THRESHOLD = -3


def measure(row: Measured, limit: int, most: int, threads: int) -> Json:
    """The largest of the models with 1 to ``most`` layers that trains within ``limit`` bytes on each rank.

    Each attempt has processes of its own, in which nothing is left of the one before.
    """

    def trains(layers: int) -> float | None:
        scenario = with_layers(row.scenario, layers)
        with Pool(scenario.world, scenario.device, threads) as ranks:
            try:
                return max(ranks.run(_train, row.subject, scenario, limit, timeout=TIME_LIMIT))
            except RankFault as fault:
                if any(word in str(fault) for word in _FULL):
                    return None
                raise

    layers, seconds = largest(trains, most)
    scenario = row.scenario
    kept = [("optimizer", scenario.optimizer_at), ("parameters", scenario.parameters_at)]
    return {
        "subject": row.subject,
        "stage": scenario.stage,
        "offload": ", ".join(f"{what} {where}" for what, where in kept if where != "none") or None,
        "dtype": scenario.dtype,
        "world": scenario.world,
        "limit": limit,
        "layers": layers,
        "parameters": _parameters(scenario, layers) if layers else None,
        "beyond": _parameters(scenario, layers + 1) if layers < most else None,
        "seconds": seconds,
    }


def largest(trains: Callable[[int], float | None], most: int) -> tuple[int, float | None]:
    """The most layers that train and the seconds that ``trains`` gives for them; (0, None) where not even one does.

    What trains with some layers is taken to train with fewer.
    """
    fit, beyond, best = 0, most + 1, None
    while beyond - fit > 1:
        layers = (fit + beyond) // 2
        seconds = trains(layers)
        if seconds is None:
            beyond = layers
        else:
            fit, best = layers, seconds
    return fit, best


def with_layers(scenario: Scenario, layers: int) -> Scenario:
    """The Scenario of a GPT with so many layers."""
    assert isinstance(scenario.model, Gpt)
    return scenario.but(model=replace(scenario.model, layers=layers))


def _parameters(scenario: Scenario, layers: int) -> int:
    return sum(parameter.numel() for parameter in models.shapes(with_layers(scenario, layers)).parameters())


def _train(group: dist.ProcessGroup, subject: str, scenario: Scenario, limit: int) -> float:
    """Two steps within the limit, the building of the model included; the seconds of the second."""
    rank = dist.get_rank(group)
    _limit(scenario.device, limit)
    with closing(start(load(subject), scenario, group)) as engine:
        run_step(engine, scenario, 0, rank)
        begin = time.perf_counter()
        run_step(engine, scenario, 1, rank)  # ends with a loss on the CPU
        return time.perf_counter() - begin


def _limit(device: str, size: int) -> None:
    if device == "cuda":
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total))
        return
    _give_freed_memory_back()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used = int(status.partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _give_freed_memory_back() -> None:
    """Let glibc's malloc map what is not small by itself, as it does by default: else holes in the heap would count."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 17)
