"""FSDP1: a block that recomputes itself by a reentrant checkpoint, and runs twice in a forward, has a wrong gradient.

The loss is the sum of x * w and 2 * x * w, of two calls of the block with the weight w = 1. With x = 0 on one rank and
2 on the other the mean gradient of w is 3, and SGD with lr 1 must move w from 1 to -2, as it does without reentry.
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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

RANKS = 2


class Block(torch.nn.Module):
    """Multiplies by its weight, and recomputes that in the backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(lambda hidden: hidden * self.weight, x, use_reentrant=self.reentrant)
        return found


class Model(torch.nn.Module):
    """Calls its block for its input, and for twice its input."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(4))
        self.block: torch.nn.Module = Block(reentrant)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x * self.gain
        return (self.block(hidden) + self.block(2 * hidden)).sum()


def sharded(module: torch.nn.Module, strategy: str, named: bool) -> FullyShardedDataParallel:
    """The module in FSDP."""
    return FullyShardedDataParallel(
        module,
        sharding_strategy=ShardingStrategy[strategy],
        use_orig_params=named,
        device_id=torch.device("cpu"),
    )


def train(strategy: str | None, named: bool, reentrant: bool) -> str:
    """The first element of the block's weight after one step, or the error."""
    model = Model(reentrant)
    module: torch.nn.Module
    if strategy is None:
        module = DistributedDataParallel(model, static_graph=True)
    else:
        model.block = sharded(model.block, strategy, named)
        module = sharded(model, strategy, named)
    [parameter] = model.block.parameters()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    try:
        module(torch.full((4,), 2.0 * dist.get_rank())).backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    optimizer.step()
    return str(parameter.detach().flatten()[0].item())


def on_rank(rank: int, folder: str) -> None:
    """In each kind of engine; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    cases = [(None, True), ("NO_SHARD", True), ("NO_SHARD", False), ("SHARD_GRAD_OP", True), ("FULL_SHARD", True)]
    for strategy, named in cases:
        for reentrant in (False, True):
            found: list[str | None] = [None] * RANKS
            dist.all_gather_object(found, train(strategy, named, reentrant))
            got = ", ".join(map(str, found))
            if rank == 0:
                name = "DDP" if strategy is None else f"{strategy}, use_orig_params={named}"
                print(f"{name}, reentrant={reentrant}: expected the weights -2.0, -2.0, got {got}", flush=True)
                if got != "-2.0, -2.0":
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
