"""ZeroRedundancyOptimizer under Join: a rank that has no more inputs updates its shard with its last gradient.

The model is w * v * x with w = v = 1, and rank 0 owns one of the two weights. Rank 0 has one input and rank 1 has two.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
RATE = 0.125
INPUTS = ([1.0], [1.0, -0.5])


class Product(torch.nn.Module):
    """The loss is the product of both weights and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))

    def forward(self, x: float) -> torch.Tensor:
        return (self.w * self.v * x).sum()


def expected() -> list[float]:
    """Two steps of SGD in one process; each divides by the number of ranks, as DDP does under Join."""
    model = Product()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for inputs in ([1.0, 1.0], [-0.5]):
        optimizer.zero_grad()
        for x in inputs:
            (model(x) / RANKS).backward()
        optimizer.step()
    return values(model)


def values(model: torch.nn.Module) -> list[float]:
    """The weights of a model."""
    return [round(float(p), 6) for p in model.parameters()]


def trained(rank: int, sharded: bool) -> list[float]:
    """The weights after all inputs, with ZeroRedundancyOptimizer or with SGD on each rank."""
    model = Product()
    ddp = DistributedDataParallel(model)
    kind = torch.optim.SGD
    optimizer: torch.optim.Optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, lr=RATE)
        if sharded
        else kind(model.parameters(), lr=RATE)
    )
    with Join([ddp, optimizer] if sharded else [ddp]):  # type: ignore[list-item]
        for x in INPUTS[rank]:
            optimizer.zero_grad()
            ddp(x).backward()
            optimizer.step()
    return values(model)


def on_rank(rank: int, folder: str) -> None:
    """Both optimizers; rank 1, which has taken every step, tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for sharded in (False, True):
        found = trained(rank, sharded)
        if rank == 1:
            print(f"{'ZeroRedundancyOptimizer' if sharded else 'SGD'}: expected {expected()}, got {found}", flush=True)
            if found != expected():
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a weight is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
