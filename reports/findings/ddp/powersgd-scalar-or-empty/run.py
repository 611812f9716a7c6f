"""DDP: powerSGD_hook raises if a parameter is a scalar, or has no element."""

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
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
#: The shapes of the parameter beside a linear.
SHAPES: tuple[tuple[int, ...], ...] = (3,), (), (0, 3)


class Model(torch.nn.Module):
    """A linear, and a parameter of a given shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.other = torch.nn.Parameter(torch.ones(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum() + self.other.sum()


def train(shape: tuple[int, ...]) -> str:
    """ "trained", or the error of a step."""
    module = DistributedDataParallel(Model(shape))
    module.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    try:
        for _ in range(6):
            module.zero_grad()
            module(torch.ones(1, 4)).backward()
    except (RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


def on_rank(rank: int, folder: str) -> None:
    """Train with each shape; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    for shape in SHAPES:
        got = train(shape)
        if rank == 0:
            print(f"parameter of shape {shape}: expected trained, got {got}", flush=True)
            if got != "trained":
                Path(folder, "wrong").touch()
        dist.barrier()


def main() -> int:
    """1 if a step raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
