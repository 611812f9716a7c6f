"""FSDP1 without shards and use_orig_params: a block whose forward runs and whose backward does not is lost.

Two of four steps train the block; the others detach its output. Its output is the sum of its input and its bias, so
that SGD with lr 1 must move each element of the bias from 0 to -2.
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

TRAINED = (True, False, True, False)


class Shift(nn.Module):
    """Adds its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


class Model(nn.Module):
    """A layer, and a block whose output may be detached."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = Shift(), Shift()

    def forward(self, x: torch.Tensor, trains_block: bool) -> torch.Tensor:
        hidden = self.stem(x)
        output = self.block(hidden)
        return (output if trains_block else hidden + output.detach()).sum()  # type: ignore[no-any-return]


def train(strategy: ShardingStrategy) -> tuple[float, int]:
    """An element of the bias that the block's forward adds after the steps, and the number of listed parameters."""
    model = Model()

    def sharded(module: nn.Module) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(
            module, sharding_strategy=strategy, use_orig_params=True, device_id=torch.device("cpu")
        )

    model.block = sharded(model.block)  # type: ignore[assignment]
    module = sharded(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for trains_block in TRAINED:
        module(torch.zeros(3), trains_block).backward()
        optimizer.step()
        optimizer.zero_grad()
    listed = len(list(module.parameters()))
    with torch.no_grad():
        return float(model.block(torch.zeros(3))[0]), listed


def run(rank: int, folder: str) -> None:
    """One rank: print what it has, and write down whether it is wrong."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD):
        bias, listed = train(strategy)
        if rank == 0:
            print(f"{strategy.name}: expected the block's bias -2.0, got {bias}", flush=True)
            print(f"{strategy.name}: expected 2 parameters in parameters(), got {listed}", flush=True)
            if (bias, listed) != (-2.0, 2):
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a bias or the list of parameters is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(folder,), nprocs=2)  # type: ignore[no-untyped-call]
        return int((Path(folder) / "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
