"""FSDP1: after an evaluation between backward and step, the optimizer's step does not update the root unit.

The loss is the sum of the weight, so that SGD with lr 1 must move it from 0 to -1.
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

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def train(strategy: ShardingStrategy, orig: bool, evaluates: bool) -> float:
    """The weight after one step."""
    module = FullyShardedDataParallel(
        Model(), sharding_strategy=strategy, use_orig_params=orig, device_id=torch.device("cpu")
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module().backward()
    if evaluates:
        with torch.no_grad():
            module()
    optimizer.step()
    with FullyShardedDataParallel.summon_full_params(module):
        return float(module.weight[0])


def on_rank(rank: int, folder: str) -> None:
    """Each strategy, with and without the evaluation; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        for orig in (False, True):
            for evaluates in (False, True):
                got = train(strategy, orig, evaluates)
                if rank == 0:
                    what = f"{strategy.name}, use_orig_params={orig}, evaluation={evaluates}"
                    print(f"{what}: expected -1.0, got {got}", flush=True)
                    if got != -1.0:
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
