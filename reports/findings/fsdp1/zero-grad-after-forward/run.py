"""FSDP1: with SHARD_GRAD_OP and use_orig_params, zero_grad() between forward and backward does nothing;
nor does it after a forward without a backward.

The loss is the sum of the weight, so that each step's gradient is 1, and SGD with lr 1 must move the weight by -1.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2
ORDERS = "after the forward", "after a forward without a backward"
STRATEGIES = ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD


class Model(torch.nn.Module):
    """The loss is the sum of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def train(strategy: ShardingStrategy, keeps: bool, order: str) -> float:
    """An element of the weight after three steps; ``keeps`` is use_orig_params."""
    cpu = torch.device("cpu")
    module = FullyShardedDataParallel(Model(), sharding_strategy=strategy, use_orig_params=keeps, device_id=cpu)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(3):
        if order == "after a forward without a backward":
            module()
            module.zero_grad()
        loss = module()
        if order == "after the forward":
            module.zero_grad()
        loss.backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(module):
        return module.module.weight[0].item()  # type: ignore[index]


def on_rank(rank: int, folder: str) -> None:
    """Each strategy, with and without the original parameters; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for strategy in STRATEGIES:
        for keeps, order in itertools.product((False, True), ORDERS):
            got = train(strategy, keeps, order)
            if rank == 0:
                what = f"{strategy.name}, use_orig_params={keeps}, zero_grad() {order}"
                print(f"{what}: expected -3.0 after three steps, got {got}", flush=True)
                if got != -3.0:
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
