"""The kernels at work on n elements, with the bytes they move, and others that do the same work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from engine.ops.fold import fold
from engine.ops.pack import pack
from engine.ops.sumsq import chunk_sumsq
from engine.ops.update import AdamRule, adam_step

Work = Callable[[], object]

_HALF = torch.bfloat16
_FACTOR = 0.25
_RULE = AdamRule(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, decoupled=True, step=10)


@dataclass(frozen=True)
class Case:
    """What a kernel does in one run, the bytes that it reads and writes, and rivals by name."""

    work: Work
    moved: int
    rivals: Mapping[str, Work]


def _random(n: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n, device=device).to(dtype)


def _adam_step(n: int, device: str) -> Case:
    """28 bytes an element: 16-bit gradient in, 16-bit parameter out, three fp32 states in and out."""
    master, exp_avg, exp_avg_sq = (_random(n, device) for _ in range(3))
    gradient, parameter = _random(n, device, _HALF), _random(n, device, _HALF)
    rivals = {name: _stepped(make, gradient, parameter) for name, make in _optimizers(device).items()}
    work = partial(adam_step, master, gradient, exp_avg, exp_avg_sq, parameter, _FACTOR, _RULE)
    return Case(work, 28 * n, rivals)


def _optimizers(device: str) -> dict[str, Any]:
    """torch's fused AdamW and, where deepspeed is installed, the one with which its offload steps on the CPU."""
    known: dict[str, Any] = {"torch": partial(torch.optim.AdamW, fused=True, capturable=device == "cuda")}
    if device == "cpu" and find_spec("deepspeed"):
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        known["deepspeed"] = partial(DeepSpeedCPUAdam, adamw_mode=True)
    return known


def _stepped(make: Any, gradient: Tensor, parameter: Tensor) -> Work:
    """Another's optimizer with the casts and the scaling that it needs around it."""
    weights = torch.nn.Parameter(_random(gradient.numel(), str(gradient.device)))
    weights.grad = torch.empty_like(weights)
    optimizer = make([weights], lr=_RULE.lr, weight_decay=_RULE.weight_decay)

    @torch.no_grad()
    def step() -> None:
        assert weights.grad is not None
        weights.grad.copy_(gradient).mul_(_FACTOR)
        optimizer.step()
        parameter.copy_(weights)

    return step


def _fold(world: int, first: bool, n: int, device: str) -> Case:
    """2 bytes an element and rank in, 4 out, and 4 in where the accumulator counts; n elements are in all rows."""
    n //= world
    accumulator, rows = _random(n, device), torch.rand(world, n, device=device).to(_HALF)

    def chain() -> None:
        if first:
            accumulator.zero_()
        for row in rows:
            accumulator.add_(row)

    work = partial(fold, accumulator, rows, first=first)
    return Case(work, n * (2 * world + (4 if first else 8)), {"torch": chain})


def _chunk_sumsq(dtype: torch.dtype, n: int, device: str) -> Case:
    """Each element read once; torch's norm, which promises no order, stands beside it."""
    values = _random(n, device, dtype)
    return Case(partial(chunk_sumsq, values, 1024), values.nbytes, {"torch": partial(torch.linalg.vector_norm, values)})


def _pack(dtype: torch.dtype, n: int, device: str) -> Case:
    """64 fp32 tensors into one buffer, as they are or rounded."""
    size = n // 64
    tensors, starts = [_random(size, device) for _ in range(64)], list(range(0, 64 * size, size))
    flat = torch.zeros(64 * size, dtype=dtype, device=device)
    views = list(torch.split(flat, size))
    copies = partial(torch._foreach_copy_, views, tensors)
    return Case(partial(pack, flat, tensors, starts), 4 * flat.numel() + flat.nbytes, {"torch": copies})


CASES: dict[str, Callable[[int, str], Case]] = {
    "adam_step": _adam_step,
    "fold 2 rows": partial(_fold, 2, True),
    "fold 2 rows, onto": partial(_fold, 2, False),
    "fold 4 rows": partial(_fold, 4, True),
    "fold 4 rows, onto": partial(_fold, 4, False),
    "chunk_sumsq fp32": partial(_chunk_sumsq, torch.float32),
    "chunk_sumsq bf16": partial(_chunk_sumsq, _HALF),
    "pack": partial(_pack, torch.float32),
    "pack to bf16": partial(_pack, _HALF),
}


def rivals(name: str, device: str) -> list[str]:
    """With what a case is compared: a copy of as many bytes, and who does the same work."""
    return ["copy", *(_optimizers(device) if name == "adam_step" else ["torch"])]


def sizes(quick: bool, device: str) -> list[int]:
    """Elements; the smallest of a GPU stays in its cache."""
    if device == "cuda":
        return [1 << 24, 1 << 28] if quick else [1 << 20, 1 << 24, 1 << 28, 1 << 31]
    return [1 << 22] if quick else [1 << 24, 1 << 26]
