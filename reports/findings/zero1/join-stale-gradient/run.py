"""ZeroRedundancyOptimizer: under Join, a rank that has joined steps with its last gradient.

The gradient of each weight is the factor of a batch. In the second step rank 0 is out of batches, so that the mean is
1.5, and each weight goes from -1 to -2.5.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.join import Join, Joinable
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
#: The factors of each rank's batches.
BATCHES = ((1.0,), (1.0, 3.0))


class Model(torch.nn.Module):
    """The loss is the sum of both weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.first + self.second).sum() * factor


def weights_after(sharded: bool, view: bool, rank: int) -> list[float]:
    """The weights after a step of both ranks, and one of rank 1 alone, as torch's tutorial of Join has it."""
    model = Model()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=view)
    joined: list[Joinable] = [ddp]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1)
    if sharded:
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1)
        joined.append(zero)
        optimizer = zero
    with Join(joined):
        for factor in BATCHES[rank]:
            optimizer.zero_grad()
            ddp(factor).backward()
            optimizer.step()
    return [float(parameter.detach()[0]) for parameter in model.parameters()]


def on_rank(rank: int, folder: str) -> None:
    """With torch's SGD, and with its shards; rank 1, which has all batches, tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=20)
    )
    for sharded in (False, True):
        for view in (False, True):
            weights = weights_after(sharded, view, rank)
            if rank == 1:
                name = "ZeroRedundancyOptimizer" if sharded else "SGD"
                print(f"{name}, gradient_as_bucket_view={view}: expected [-2.5, -2.5], got {weights}", flush=True)
                if weights != [-2.5, -2.5]:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a weight has moved by the gradient of the step before."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
