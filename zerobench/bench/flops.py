"""FLOPs: those of a model's step, counted by torch, and the rate of a matrix multiplication for comparison."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from zerobench.scenario import Dtype, Scenario
from zerobench.workload import models
from zerobench.workload.data import DTYPES, leaf

#: Size of the square matrices by device: large enough for the full rate, small enough to be quick.
SIZES = {"cpu": 1024, "cuda": 8192}
_REPEATS = 5


def model_flops(group: dist.ProcessGroup, scenario: Scenario) -> int:
    """Of one step on one rank: A forwards and backwards; recomputation and the optimizer do not count.

    They are counted in fp32 on tensors without values, so that they are the same in every dtype and on every device:
    attention is two full matrix products, masked or not.
    """
    plain = scenario.but(model=replace(scenario.model, recompute="none"), device="cpu", dtype="fp32")
    model = models.shapes(plain)
    batch = {name: value.to("meta") if hasattr(value, "to") else value for name, value in leaf(plain, 0, 0).items()}
    with FlopCounterMode(display=False) as counter:
        model(**batch).backward()
    return int(counter.get_total_flops()) * scenario.accumulation


def peak(group: dist.ProcessGroup, dtype: Dtype, device: str) -> float:
    """FLOPs per second of this rank in the best of a few matrix multiplications, which all ranks run at once."""
    size = SIZES[device]
    left, right = (torch.randn(size, size, device=device).to(DTYPES[dtype]) for _ in range(2))
    dist.barrier(group)
    return 2 * size**3 / min(_product(left, right) for _ in range(1 + _REPEATS))


def _product(left: torch.Tensor, right: torch.Tensor) -> float:
    begin = time.perf_counter()
    left @ right
    if left.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin
