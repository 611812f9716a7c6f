"""FSDP1: with use_orig_params a module that has trained does not survive a cast to fp64 and back.

The loss is the sum of a weight, so each step's gradient is 1, and SGD with lr 1 must move the weight by -1 in each of
four steps. Before the third one the client calls module.double() and module.float(), which changes no value.
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
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS, STEPS = 2, 4


class Sum(torch.nn.Module):
    """The sum of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def train(strategy: ShardingStrategy, cast_before: int, *, named: bool) -> float:
    """An element of the weight after all steps."""
    module = FullyShardedDataParallel(
        Sum(), sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=named
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for step in range(STEPS):
        module.zero_grad()
        if step == cast_before:
            module.double()
            module.float()
        module().backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        return next(iter(module.parameters()))[0].item()


def on_rank(rank: int, folder: str) -> None:
    """The strategies, without a cast, before the first step and before the third; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    strategies = ShardingStrategy.NO_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD
    for cast_before in (-1, 0, 2):
        for strategy, named in [(each, True) for each in strategies] + [(strategies[-1], False)]:
            got = train(strategy, cast_before, named=named)
            if rank == 0:
                case = f"{strategy.name}, use_orig_params={named}, {cast_before=}"
                print(f"{case}: expected {-1.0 * STEPS}, got {got}", flush=True)
                if got != -STEPS:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if the weight is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
