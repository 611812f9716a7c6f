"""FSDP1, HYBRID_SHARD on a mesh of N replicas by 1 shard: gradients are divided by N and never summed."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2


def on_rank(rank: int, folder: str) -> None:
    """The gradient of rank r's loss is r + 1; the mean over two ranks is 1.5."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("replicate", "shard"))
    model = FullyShardedDataParallel(
        nn.Linear(4, 1, bias=False),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    model(torch.full((1, 4), rank + 1.0)).sum().backward()
    [weight] = model.parameters()
    assert weight.grad is not None
    got = float(weight.grad.flatten()[0])
    for turn in range(RANKS):
        dist.barrier()
        if turn == rank:
            print(f"rank {rank}: expected 1.5, got {got:g}", flush=True)
    if got != 1.5:
        Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
