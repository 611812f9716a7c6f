"""FSDP1: with ShardedGradScaler a fused optimizer applies steps that overflow."""

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
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

RANKS = 2
#: The gradient of a weight; a rank has the shard of the first two elements, the other one the last two.
BOTH, ONE = (torch.inf, 1.0, 1.0, torch.inf), (1.0, 1.0, 1.0, torch.inf)


def after_overflow(gradient: tuple[float, ...], unscales: bool, fused: bool) -> str:
    """The weight after a step with a gradient that is not finite."""
    layer = torch.nn.Linear(4, 1, bias=False)
    module = FullyShardedDataParallel(layer, device_id=torch.device("cpu"), use_orig_params=True)
    with FullyShardedDataParallel.summon_full_params(module):
        torch.nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, fused=fused)
    scaler = ShardedGradScaler(device="cpu", init_scale=2.0)
    scaler.scale(module(torch.tensor([gradient])).sum()).backward()
    if unscales:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        return str(layer.weight.flatten().tolist())


def on_rank(rank: int, folder: str) -> None:
    """Train with each form of the optimizer; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    for shards, gradient in (("both shards", BOTH), ("one shard", ONE)):
        for unscales in (True, False):
            for fused in (False, True):
                found = after_overflow(gradient, unscales, fused)
                if rank == 0:
                    how = f"fused={fused}, {'after' if unscales else 'without'} unscale_"
                    print(f"overflow in {shards}, {how}: expected [0.0, 0.0, 0.0, 0.0], got {found}")
                    if found != "[0.0, 0.0, 0.0, 0.0]":
                        Path(folder, "wrong").touch()
    dist.barrier()


def main() -> int:
    """1 if a step that overflows is applied."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
