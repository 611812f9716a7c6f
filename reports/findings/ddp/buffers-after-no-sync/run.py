"""DDP: the forward after no_sync() does not begin with the buffers of rank 0, though forward_sync_buffers says so.

A buffer adds what each forward is given, 1 on rank 0 and 3 on rank 1, and the loss is the weight times the buffer, so
that the gradient is the buffer. If each forward begins with rank 0's buffer, the two forwards of a step have 1 and 2 on
rank 0, and 3 and 4 on rank 1: the mean of their sums is 5. If only the second one has a backward, the mean is 3.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the weight times a buffer, which adds what it is given."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.seen += given
        return self.weight * self.seen


#: The first of two forwards, and the gradient that DDP's page demands.
FIRST = {"reduced": 5.0, "in no_sync()": 5.0, "in torch.no_grad()": 3.0}


def gradient(first: str, rank: int) -> float:
    """The gradient after two forwards, of which the second one is reduced."""
    module = DistributedDataParallel(Model(), forward_sync_buffers=True)
    given = torch.tensor(1.0 if rank == 0 else 3.0)
    context: AbstractContextManager[None] = module.no_sync() if first == "in no_sync()" else nullcontext()
    if first == "in torch.no_grad()":
        with torch.no_grad():
            module(given)
    else:
        with context:
            module(given).backward()
    module(given).backward()
    found = next(module.parameters()).grad
    assert found is not None
    return found.item()


def on_rank(rank: int, folder: str) -> None:
    """After each kind of first forward; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for first, expected in FIRST.items():
        got = gradient(first, rank)
        if rank == 0:
            print(f"first forward {first}: expected the gradient {expected}, got {got}", flush=True)
            if got != expected:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
