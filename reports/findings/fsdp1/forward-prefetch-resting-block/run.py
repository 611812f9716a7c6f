"""FSDP1 without shards, use_orig_params and forward_prefetch: a block that a step does not use is lost.

Two of four steps use the block. Its loss is the sum of its weight, so that SGD with lr 1 must move it from 0 to -2.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

USED = (True, False, True, False)


class Summed(nn.Module):
    """Adds the sum of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss + self.weight.sum()


class Model(nn.Module):
    """A layer, and a block that a step may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = Summed(), Summed()

    def forward(self, loss: torch.Tensor, uses_block: bool) -> torch.Tensor:
        loss = self.stem(loss)
        return self.block(loss) if uses_block else loss  # type: ignore[no-any-return]


def train(strategy: ShardingStrategy, prefetches: bool) -> float:
    """The block's weight after the steps: half of what the block adds to the loss."""
    model = Model()

    def sharded(module: nn.Module) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(
            module,
            sharding_strategy=strategy,
            use_orig_params=True,
            forward_prefetch=prefetches,
            device_id=torch.device("cpu"),
        )

    model.stem, model.block = sharded(model.stem), sharded(model.block)  # type: ignore[assignment]
    module = sharded(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for uses_block in USED:
        module(torch.zeros(()), uses_block).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        whole, stem = (module(torch.zeros(()), uses_block).item() for uses_block in (True, False))
    return float(whole - stem) / 2


def run(rank: int, folder: str) -> None:
    """One rank: print what it has, and write down whether it is wrong."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD):
        for prefetches in (False, True):
            weight = train(strategy, prefetches)
            if rank == 0:
                what = f"{strategy.name}, forward_prefetch={prefetches}"
                print(f"{what}: expected the block's weight -2.0, got {weight}", flush=True)
                if weight != -2.0:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a weight is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(folder,), nprocs=2)  # type: ignore[no-untyped-call]
        return int((Path(folder) / "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
