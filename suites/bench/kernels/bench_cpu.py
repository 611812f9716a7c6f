"""The CPU kernels against torch and against a plain copy loop, on ``ZEROBENCH_THREADS`` threads (default 2).

``pytest suites/bench/kernels/bench_cpu.py -n 0 -s``
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.ops.fold import fold
from engine.ops.pack import pack
from engine.ops.sumsq import chunk_sumsq
from engine.ops.update import AdamRule, adam_step
from suites.bench.kernels.rounds import by_turns, copy_loop

_HALF = torch.bfloat16
_FACTOR = 0.25
_RULE = AdamRule(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, decoupled=True, step=10)

pytestmark = pytest.mark.parametrize("n", [1 << 24, 1 << 26], ids=["16M", "64M"])


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("ZEROBENCH_THREADS", "2")))
    yield
    torch.set_num_threads(before)


def _random(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n).to(dtype)


def test_adam_step(benchmark: Any, n: int) -> None:
    """28 bytes an element: 16-bit gradient in, 16-bit parameter out, three fp32 states in and out."""
    master, exp_avg, exp_avg_sq = _random(n), _random(n), _random(n)
    gradient, parameter = _random(n, _HALF), _random(n, _HALF)

    def kernel() -> None:
        adam_step(master, gradient, exp_avg, exp_avg_sq, parameter, _FACTOR, _RULE)

    rivals = {"torch fused": _fused(gradient, parameter, n), "copy": copy_loop(exp_avg, exp_avg_sq)}
    by_turns(benchmark, kernel, 28 * n, rivals, 8 * n)


def _fused(gradient: Tensor, parameter: Tensor, n: int) -> Any:
    """torch.optim.AdamW(fused=True) with the casts and the scaling that it needs around it."""
    weights = torch.nn.Parameter(_random(n))
    weights.grad = torch.empty(n)
    optimizer = torch.optim.AdamW([weights], lr=_RULE.lr, weight_decay=_RULE.weight_decay, fused=True)

    @torch.no_grad()
    def step() -> None:
        assert weights.grad is not None
        weights.grad.copy_(gradient).mul_(_FACTOR)
        optimizer.step()
        parameter.copy_(weights)

    return step


@pytest.mark.parametrize("first", [True, False], ids=["first", "onto"])
@pytest.mark.parametrize("world", [2, 4])
def test_fold(benchmark: Any, n: int, world: int, first: bool) -> None:
    """2 bytes an element and rank in, 4 out, and 4 in where the accumulator counts."""
    n //= world
    accumulator, rows = _random(n), torch.rand(world, n).to(_HALF)
    source, target = _random(n), _random(n)

    def chain() -> None:
        if first:
            accumulator.zero_()
        for row in rows:
            accumulator.add_(row)

    rivals = {"torch adds": chain, "copy": copy_loop(target, source)}
    moved = n * (2 * world + (4 if first else 8))
    by_turns(benchmark, lambda: fold(accumulator, rows, first=first), moved, rivals, 8 * n)


@pytest.mark.parametrize("dtype", [torch.float32, _HALF], ids=["fp32", "bf16"])
def test_chunk_sumsq(benchmark: Any, n: int, dtype: torch.dtype) -> None:
    """Each element read once; torch's norm, which promises no order, stands beside it."""
    values, target, source = _random(n, dtype), _random(n), _random(n)
    rivals = {"torch norm": lambda: torch.linalg.vector_norm(values), "copy": copy_loop(target, source)}
    by_turns(benchmark, lambda: chunk_sumsq(values, 1024), values.nbytes, rivals, 8 * n)


@pytest.mark.parametrize("dtype", [torch.float32, _HALF], ids=["same", "cast"])
def test_pack(benchmark: Any, n: int, dtype: torch.dtype) -> None:
    """64 fp32 tensors into one buffer, as they are or rounded to bf16."""
    size = n // 64
    tensors, starts = [_random(size) for _ in range(64)], list(range(0, n, size))
    flat, target, source = torch.zeros(n, dtype=dtype), _random(n), _random(n)
    views = list(torch.split(flat, size))
    rivals = {"torch": lambda: torch._foreach_copy_(views, tensors), "copy": copy_loop(target, source)}
    by_turns(benchmark, lambda: pack(flat, tensors, starts), 4 * n + flat.nbytes, rivals, 8 * n)
