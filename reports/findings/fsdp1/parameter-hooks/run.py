"""FSDP1 with use_orig_params: hooks that the client sets on a parameter are never called.

They are set by Tensor.register_hook, or by register_post_accumulate_grad_hook.

The loss is the sum of a weight, so that its gradient is 1. The hook halves it, so that SGD with lr 1 must move the
weight by -0.5, as with DistributedDataParallel.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return (factor * self.weight).sum()


ENGINES = "DDP", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"


def halve(parameter: torch.Tensor) -> None:
    """Halve the gradient that a parameter has."""
    if parameter.grad is not None:
        parameter.grad.mul_(0.5)


def train(engine: str, after: bool) -> float:
    """An element of the weight after one step."""
    model = Model()
    module: torch.nn.Module
    if engine == "DDP":
        module = DistributedDataParallel(model)
    else:
        strategy = ShardingStrategy[engine]
        module = FullyShardedDataParallel(
            model, sharding_strategy=strategy, use_orig_params=True, device_id=torch.device("cpu")
        )
    for parameter in model.parameters():
        if after:
            parameter.register_post_accumulate_grad_hook(halve)  # type: ignore[no-untyped-call]
        else:
            parameter.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    module(torch.ones(8)).backward()
    optimizer.step()
    if engine == "DDP":
        return model.weight[0].item()
    with FullyShardedDataParallel.summon_full_params(module):
        return model.weight[0].item()


def on_rank(rank: int, folder: str) -> None:
    """In each kind of engine; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for engine, after in itertools.product(ENGINES, (False, True)):
        got = train(engine, after)
        if rank == 0:
            print(f"{engine}, {after=}: expected the weight -0.5, got {got}", flush=True)
            if got != -0.5:
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
