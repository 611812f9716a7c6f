"""FSDP1 without shards: after a parameter was frozen, a step loses its gradients of backwards in no_sync()."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2
EXPECTED = 2.0


class Model(torch.nn.Module):
    """The loss is the sum of two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))

    def forward(self) -> torch.Tensor:
        return self.first.sum() + self.second.sum()


def gradients(syncs: bool) -> list[float]:
    """Of both weights, after two backwards of a step; the first weight was frozen in the step before."""
    model = Model()
    sharded = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy.NO_SHARD,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    for trains in (False, True):
        model.first.requires_grad_(trains)
        sharded.zero_grad()
        with nullcontext() if syncs else sharded.no_sync():
            sharded().backward()
        sharded().backward()
    return [float(p.grad[0]) if p.grad is not None else 0.0 for p in sharded.parameters()]


def on_rank(rank: int, folder: str) -> None:
    """With no_sync() and without it; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for syncs in (True, False):
        found = gradients(syncs)
        if rank == 0:
            print(f"{'without' if syncs else 'with'} no_sync(): expected {[EXPECTED] * 2}, got {found}", flush=True)
            if found != [EXPECTED] * 2:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is lost."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
