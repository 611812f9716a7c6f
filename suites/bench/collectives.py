"""Collectives timed on the ranks, and their bandwidths by nccl-tests' definitions.

nccl-tests (doc/PERFORMANCE.md) calls S / t the algorithm bandwidth, S being the bytes of the full vector: what every
rank holds after an all-gather, before a reduce-scatter, before and after an all-reduce, and what it sends in an
all-to-all, its own part included. The bus bandwidth is what then crosses the narrowest link of a perfect ring: one
number for every collective and world size where only the links set the pace.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from zerobench.engine.comm.collectives import Ranks
from zerobench.engine.ops.folding import fold
from zerobench.results import Json

Collective = Callable[[dist.ProcessGroup, Tensor, Tensor], object]

#: Bus bandwidth over algorithm bandwidth, in units of (n - 1) / n.
_BUS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "fold_reduce_scatter": 1}
COLLECTIVES = tuple(_BUS)
_WARMUP = 2


def sizes(quick: bool, device: str) -> list[int]:
    """Bytes of the full vector: from where latency rules to where bandwidth does."""
    largest = 1 << (30 if device == "cuda" else 26)
    return [1 << 16, 1 << 20, 1 << 24] if quick else [size for i in range(12, 31, 2) if (size := 1 << i) <= largest]


def time_collectives(group: dist.ProcessGroup, size: int, device: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round on this rank, from when all were ready; fp32. In a round each collective has its turn."""
    world = dist.get_world_size(group)
    whole = torch.ones(size // 4 // world * world, device=device)
    part = torch.ones(whole.numel() // world, device=device)
    turns = [
        {name: _seconds(group, call, whole, part) for name, call in _CALLS.items()} for _ in range(_WARMUP + rounds)
    ]
    return {name: [turn[name] for turn in turns[_WARMUP:]] for name in _CALLS}


def _seconds(group: dist.ProcessGroup, call: Collective, whole: Tensor, part: Tensor) -> float:
    _synchronize(whole)
    dist.barrier(group)
    begin = time.perf_counter()
    call(group, whole, part)
    _synchronize(whole)
    return time.perf_counter() - begin


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _all_gather(group: dist.ProcessGroup, whole: Tensor, part: Tensor) -> None:
    Ranks.of(group).all_gather(whole, part).wait()


def _all_to_all(group: dist.ProcessGroup, whole: Tensor, part: Tensor) -> None:
    Ranks.of(group).all_to_all(torch.empty_like(whole), whole).wait()


def _reduce_scatter(group: dist.ProcessGroup, whole: Tensor, part: Tensor) -> None:
    # torch 2.13 renamed it and warns on the old name, which is the only one that 2.11 has
    flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    flat(part, whole, group=group)


def _fold_reduce_scatter(group: dist.ProcessGroup, whole: Tensor, part: Tensor) -> None:
    """The engine's: the parts to their owners, who add them in the order of the ranks."""
    received = torch.empty_like(whole)
    Ranks.of(group).all_to_all(received, whole).wait()
    fold(part, received.view(dist.get_world_size(group), -1), first=True)


_CALLS: dict[str, Collective] = {
    "all_reduce": lambda group, whole, part: dist.all_reduce(whole, group=group),
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "fold_reduce_scatter": _fold_reduce_scatter,
}


def result(name: str, size: int, world: int, backend: str, seconds: Sequence[float]) -> Json:
    """A collective of the results, of its rounds' seconds."""
    low, median, high = statistics.quantiles(seconds, method="inclusive")
    algorithm = size / median
    return {
        "collective": name,
        "bytes": size,
        "seconds": median,
        "quartiles": [low, high],
        "algorithm_bandwidth": algorithm,
        "bus_bandwidth": algorithm * _BUS[name] * (world - 1) / world,
        "world": world,
        "backend": backend,
    }
