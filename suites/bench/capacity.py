"""Capacity: the largest model that trains within a limit of memory on each rank.

On CUDA the caching allocator has the limit. On a CPU the system limits a rank's memory beyond that at its start
(``RLIMIT_DATA``): device and host are one memory there, and only files are outside.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from zerobench.bench.case_json import offload_setting
from zerobench.driver import run_step, start
from zerobench.model_specs import Gpt
from zerobench.ranks import Pool, RankFault
from zerobench.ranks.worker import M_MMAP_THRESHOLD
from zerobench.results import Json
from zerobench.scenario import Scenario
from zerobench.subjects import load
from zerobench.suites.bench.grid import Search
from zerobench.workload import models

#: Seconds for building a model and two steps of it.
TIME_LIMIT = 300.0
#: Seconds after which ranks that do nothing hang: one that gets no memory may die without a word to the others. A rank
#: that waits for a GPU does nothing either.
IDLE = {"cpu": 10.0, "cuda": math.inf}

#: The error of a rank without memory contains one of these; the last is oneDNN's.
_FULL = (
    "OutOfMemoryError",
    "MemoryError",
    "allocate memory",
    "bad_alloc",
    "start new thread",
    "out of memory",  # CUDA's, also if the system locks no more pages
    "could not reserve",  # a file, for want of disk space
    "create a primitive",
)
#: The share of host memory that models may take; the rest is the system's and the processes' own.
_HOST_SHARE = 0.8


def measure(search: Search, threads: int, progress: Callable[[str], None]) -> Json:
    """The largest model that trains, and the next one, which does not; or the reason for which neither is known.

    Each attempt has fresh processes, without remains of the one before.
    """
    base, nothing = search.case.scenario, dict.fromkeys(("layers", "parameters", "beyond", "seconds"))
    asked = {
        "subject": search.case.subject,
        "stage": base.stage,
        "offload": offload_setting(base),
        "dtype": base.dtype,
        "world": base.world,
        "limit": search.limit,
    }
    if reason := load(search.case.subject).not_offered(base):
        return {**asked, "verdict": "unsupported", "reason": reason, **nothing}
    try:
        most = bound(search)
        layers, seconds = largest(partial(_seconds, search, threads, progress), most)
    except RankFault as fault:
        return {**asked, "verdict": fault.kind, "reason": str(fault), **nothing}
    found = {
        "layers": layers,
        "parameters": _parameters(base, layers) if layers else 0,
        "beyond": _parameters(base, layers + 1) if layers < search.most else None,
        "seconds": seconds,
    }
    return {**asked, "verdict": "measured", "reason": "", **found}


def _seconds(search: Search, threads: int, progress: Callable[[str], None], layers: int) -> float | None:
    """The seconds of a step with so many layers; None if they do not fit.

    Raises:
        RankFault: it failed for another reason than want of memory.
    """
    progress(f"{search.name}: {layers} layers")
    scenario = with_layers(search.case.scenario, layers)
    with Pool(scenario.world, scenario.device, threads, IDLE[scenario.device]) as ranks:
        try:
            return max(ranks.run(_train, search.case.subject, scenario, search.limit, timeout=TIME_LIMIT))
        except RankFault as fault:
            # If C code gets no memory, it may just die.
            if fault.kind == "crashed" or any(word in str(fault) for word in _FULL):
                return None
            raise


def bound(search: Search) -> int:
    """The most layers with which the states alone are within the limit and the host's memory; at least 1.

    The states on a device and on the host are those of the subject's closed forms. A subject without them is bounded
    by the host, where each rank builds the model in fp32.
    """
    fit, beyond = 0, search.most + 1
    host = _HOST_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    while beyond - fit > 1:
        layers = (fit + beyond) // 2
        device, on_host = _states(search, layers)
        if device <= search.limit and on_host * search.case.scenario.world <= host:
            fit = layers
        else:
            beyond = layers
    return max(1, fit)


def _states(search: Search, layers: int) -> tuple[int, int]:
    """Bytes on the device, and on the host, of one rank with so many layers."""
    scenario = with_layers(search.case.scenario, layers)
    model, theory = models.shapes(scenario), load(search.case.subject).theory()
    built = 4 * sum(parameter.numel() for parameter in model.parameters())
    device = theory.memory(scenario, model) if theory else None
    off = theory.offload(scenario, model) if theory else None
    return sum((device or {}).values()), built + sum(off.host.values() if off else ())


def largest(trains: Callable[[int], float | None], most: int) -> tuple[int, float | None]:
    """The most layers that train and the seconds that ``trains`` gives for them; (0, None) if not even one does.

    If a number of layers trains, each smaller number is taken to train. The search begins at ``most``, since nearly all
    of a large model's memory is its states, goes down in steps that double until one fits, and then halves what is
    between.
    """
    fit, beyond, best, step = 0, most + 1, None, 1
    layers = most
    while beyond - fit > 1:
        seconds = trains(layers)
        if seconds is None:
            beyond = layers
        else:
            fit, best = layers, seconds
        if fit == 0 and beyond > step:
            layers, step = beyond - step, 2 * step
        else:
            layers = (fit + beyond) // 2
    return fit, best


def with_layers(scenario: Scenario, layers: int) -> Scenario:
    """The Scenario of a GPT with so many layers."""
    assert isinstance(scenario.model, Gpt)
    return scenario.but(model=replace(scenario.model, layers=layers))


def _parameters(scenario: Scenario, layers: int) -> int:
    return sum(parameter.numel() for parameter in models.shapes(with_layers(scenario, layers)).parameters())


def _train(group: dist.ProcessGroup, subject: str, scenario: Scenario, limit: int) -> float:
    """Build the model and train two steps within the limit; the seconds of the second."""
    rank, found = dist.get_rank(group), load(subject)  # before the limit: importing takes memory, too
    _limit(scenario.device, limit)
    with models.undrawn():
        engine = start(found, scenario, group)
    with closing(engine):
        run_step(engine, scenario, 0, rank)
        begin = time.perf_counter()
        run_step(engine, scenario, 1, rank)  # ends with a loss on the CPU
        return time.perf_counter() - begin


def _limit(device: str, size: int) -> None:
    if device == "cuda":
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total))
        return
    _take_no_more_than_is_used()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used = int(status.partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _take_no_more_than_is_used() -> None:
    """Else the limit would count holes in the heap, and stacks that threads never need.

    glibc's malloc maps large blocks by themselves, as by default; these go back to the system when they are freed.
    """
    threading.stack_size(1 << 20)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 17)
