"""FSDP1: the parameters of a module that has trained are not freed with it.

Each of five modules has a backward, and is deleted.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import warnings
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2
MODULES = 5


def train(strategy: ShardingStrategy, *, original: bool) -> list[weakref.ref[torch.nn.Parameter]]:
    """References to the parameters of a module that has trained, and to which nobody else refers."""
    linear = torch.nn.Linear(256, 256)
    module = FullyShardedDataParallel(
        linear, sharding_strategy=strategy, use_orig_params=original, device_id=torch.device("cpu")
    )
    module(torch.ones(1, 256)).sum().backward()
    return [weakref.ref(parameter) for parameter in module.parameters()]


def on_rank(rank: int, folder: str) -> None:
    """The number of parameters that are alive, with each strategy."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        for original in (True, False):
            parameters = [each for _ in range(MODULES) for each in train(strategy, original=original)]
            gc.collect()
            alive = sum(each() is not None for each in parameters)
            if rank == 0:
                name = f"{strategy.name}, use_orig_params={original}"
                print(f"{name}: expected 0 of {len(parameters)} parameters alive, got {alive}")
                if alive:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a parameter is alive."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
