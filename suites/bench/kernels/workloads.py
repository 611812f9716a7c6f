"""The kernels at work on n elements, with the bytes they move, and rivals that do the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.ops.folding import fold
from zerobench.engine.ops.packing import pack, unpack
from zerobench.engine.ops.runs import one_run
from zerobench.engine.ops.sumsq import chunk_sumsq
from zerobench.engine.ops.update import AdamValues, SgdValues, adam_step, sgd_step

Work = Callable[[], object]

_HALF = torch.bfloat16
_FACTOR = 0.25
_RULE = AdamValues(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, decoupled=True, step=10)
_SGD_RULE = SgdValues(lr=1e-3, momentum=0.9, weight_decay=0.01)


@dataclass(frozen=True)
class Workload:
    """A kernel's work in one run, the bytes that it reads and writes, and rivals by name.

    Each run works on the next of ``sets`` sets of buffers.
    """

    work: Work
    moved: int
    rivals: Mapping[str, Work]
    sets: int = 1


def _factor(device: str) -> Tensor:
    return torch.full((1,), _FACTOR, device=device)


def _random(n: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n, device=device).to(dtype)


def _zeros(n: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(n, device=device, dtype=dtype)


def _adam_step(make: Callable[..., Tensor], half: bool, n: int, device: str) -> Workload:
    """28 bytes an element: three fp32 states in and out, and 16-bit gradient in, parameter out, or fp32 gradient in."""
    master, exp_avg, exp_avg_sq = _random(n, device), make(n, device), make(n, device)
    gradient = make(n, device, _HALF if half else torch.float32)
    parameter = _random(n, device, _HALF) if half else None
    rivals = {name: _stepped(of, gradient, parameter) for name, of in _optimizers(device).items()}
    work = partial(adam_step, master, gradient, exp_avg, exp_avg_sq, parameter, _factor(device), one_run(n, _RULE))
    return Workload(work, 28 * n, rivals)


def _sgd_step(n: int, device: str) -> Workload:
    """20 bytes an element: 16-bit gradient in, 16-bit parameter out, master and momentum in and out."""
    master, momentum_buffer = _random(n, device), _random(n, device)
    gradient, parameter = _random(n, device, _HALF), _random(n, device, _HALF)
    theirs = partial(torch.optim.SGD, momentum=_SGD_RULE.momentum, fused=True)
    work = partial(sgd_step, master, gradient, momentum_buffer, parameter, _factor(device), one_run(n, _SGD_RULE))
    return Workload(work, 20 * n, {"torch": _stepped(theirs, gradient, parameter)})


def _optimizers(device: str) -> dict[str, Any]:
    """torch's fused AdamW and, if deepspeed is installed, the one with which its offload steps on the CPU."""
    known: dict[str, Any] = {"torch": partial(torch.optim.AdamW, fused=True, capturable=device == "cuda")}
    if device == "cpu" and find_spec("deepspeed"):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        known["deepspeed"] = partial(DeepSpeedCPUAdam, adamw_mode=True)
    return known


def _stepped(make: Any, gradient: Tensor, parameter: Tensor | None) -> Work:
    """A rival's optimizer with the casts and the scaling around it."""
    weights = torch.nn.Parameter(_random(gradient.numel(), str(gradient.device)))
    weights.grad = torch.empty_like(weights)
    optimizer = make([weights], lr=_RULE.lr, weight_decay=_RULE.weight_decay)

    @torch.no_grad()
    def step() -> None:
        assert weights.grad is not None
        weights.grad.copy_(gradient).mul_(_FACTOR)
        optimizer.step()
        if parameter is not None:
            parameter.copy_(weights)

    return step


def _fold(world: int, first: bool, n: int, device: str) -> Workload:
    """2 bytes an element and rank in, 4 out, and 4 in if the accumulator counts; n elements are in all rows."""
    n //= world
    accumulator, rows = _random(n, device), torch.rand(world, n, device=device).to(_HALF)

    def chain() -> None:
        if first:
            accumulator.zero_()
        for row in rows:
            accumulator.add_(row)

    work = partial(fold, accumulator, rows, first=first)
    return Workload(work, n * (2 * world + (4 if first else 8)), {"torch": chain})


def _chunk_sumsq(dtype: torch.dtype, n: int, device: str) -> Workload:
    """Each element read once; torch's norm, which promises no order, stands beside it."""
    values = _random(n, device, dtype)
    return Workload(
        partial(chunk_sumsq, values, 1024), values.nbytes, {"torch": partial(torch.linalg.vector_norm, values)}
    )


def _pack(dtype: torch.dtype, to: torch.dtype, n: int, device: str) -> Workload:
    """64 tensors into one buffer, as they are or rounded."""
    size = n // 64
    tensors, starts = [_random(size, device, dtype) for _ in range(64)], list(range(0, 64 * size, size))
    flat = _zeros(64 * size, device, to)
    copies = partial(torch._foreach_copy_, list(torch.split(flat, size)), tensors)
    return Workload(partial(pack, flat, tensors, starts), 64 * tensors[0].nbytes + flat.nbytes, {"torch": copies})


def _unpack(n: int, device: str) -> Workload:
    """One fp32 buffer into 64 tensors."""
    size = n // 64
    tensors, starts = [_zeros(size, device) for _ in range(64)], list(range(0, 64 * size, size))
    flat = _random(64 * size, device)
    copies = partial(torch._foreach_copy_, tensors, list(torch.split(flat, size)))
    return Workload(partial(unpack, tensors, flat, starts), 2 * flat.nbytes, {"torch": copies})


def in_turn(works: Sequence[Work]) -> Work:
    """Each call runs the next work, and after the last one the first."""
    turns = cycle(works)

    def work() -> object:
        return next(turns)()

    return work


def sets(moved: int, cache: int) -> int:
    """The number of sets of buffers that together are four times as large as a cache.

    A set has at least half the bytes that are moved: bytes move only in and out.
    """
    return max(1, -(-8 * cache // moved))


def _cache(device: str) -> int:
    """Bytes of a GPU's cache; 0 for a CPU, whose cache is overwritten before each turn."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device == "cuda" else 0


def out_of_cache(make: Callable[[int, str], Workload], n: int, device: str) -> Workload:
    """The workload on enough sets of buffers that none is in the cache in its next turn."""
    first = make(n, device)
    every = [first, *(make(n, device) for _ in range(1, sets(first.moved, _cache(device))))]
    rivals = {name: in_turn([each.rivals[name] for each in every]) for name in first.rivals}
    return Workload(in_turn([each.work for each in every]), first.moved, rivals, len(every))


_FP32 = torch.float32
_BY_NAME: dict[str, Callable[[int, str], Workload]] = {
    "adam_step": partial(_adam_step, _random, True),
    "adam_step fp32": partial(_adam_step, _random, False),
    "adam_step of zeros": partial(_adam_step, _zeros, True),
    "sgd_step": _sgd_step,
    "fold 2 rows": partial(_fold, 2, True),
    "fold 2 rows, onto": partial(_fold, 2, False),
    "fold 4 rows": partial(_fold, 4, True),
    "fold 4 rows, onto": partial(_fold, 4, False),
    "chunk_sumsq fp32": partial(_chunk_sumsq, _FP32),
    "chunk_sumsq bf16": partial(_chunk_sumsq, _HALF),
    "pack": partial(_pack, _FP32, _FP32),
    "pack to bf16": partial(_pack, _FP32, _HALF),
    "pack bf16": partial(_pack, _HALF, _HALF),
    "unpack": _unpack,
}
WORKLOADS: dict[str, Callable[[int, str], Workload]] = {
    name: partial(out_of_cache, make) for name, make in _BY_NAME.items()
}

#: On a CPU they repeat others: zeros take its divider no longer than other values, and as memcpy does it copies.
_ON_GPUS = {"adam_step fp32", "adam_step of zeros", "pack bf16"}


def names(device: str) -> list[str]:
    """The workloads that are worth their time on a device."""
    return [name for name in WORKLOADS if device == "cuda" or name not in _ON_GPUS]


def rivals(name: str, device: str) -> list[str]:
    """The rivals of a workload: a copy of as many bytes, and others that do the same work."""
    return ["copy", *(_optimizers(device) if name.startswith("adam_step") else ["torch"])]


def sizes(quick: bool, device: str) -> list[int]:
    """Elements."""
    if device == "cuda":
        return [1 << 24, 1 << 28] if quick else [1 << 20, 1 << 24, 1 << 28, 1 << 31]
    return [1 << 22] if quick else [1 << 24, 1 << 26]
