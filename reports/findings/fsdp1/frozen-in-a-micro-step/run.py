"""FSDP1: a block that is frozen in the last backward before a step loses the gradient of the backwards before it.

The loss is the sum of two weights times a factor, whose mean over the ranks is 2. A step has two backwards, each of a
half of the loss; in the second one the block's weight is frozen. With SGD of lr 1 each of two steps must move the own
weight by -2 and the block's by -1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS, STEPS = 2, 2


class Sum(torch.nn.Module):
    """Adds the sum of its weight to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum()


class Model(torch.nn.Module):
    """A layer and a block, whose sum is multiplied by a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.block = Sum(), Sum()

    def forward(self, factor: float) -> torch.Tensor:
        loss: torch.Tensor = factor * self.block(self.own(torch.zeros(())))
        return loss


def train(strategy: ShardingStrategy, frozen: int, *, named: bool, waits: bool) -> list[float] | str:
    """An element of each weight; the block is frozen in backward ``frozen``, and with ``waits`` the first backward is
    within no_sync()."""
    arguments = {"sharding_strategy": strategy, "device_id": torch.device("cpu"), "use_orig_params": named}
    model = Model()
    block = FullyShardedDataParallel(model.block, **arguments)  # type: ignore[arg-type]
    model.block = block  # type: ignore[assignment]
    module = FullyShardedDataParallel(model, **arguments)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    try:
        for _ in range(STEPS):
            module.zero_grad()
            for number in range(2):
                block.requires_grad_(number != frozen)
                with module.no_sync() if waits and number == 0 else nullcontext():
                    (module(1.0 + 2.0 * dist.get_rank()) / 2).backward()
            optimizer.step()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        return [p[0].item() for p in module.parameters()]


def on_rank(rank: int, folder: str) -> None:
    """The strategies, frozen in no backward, in the first, and in the second; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    strategies = ShardingStrategy.NO_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD
    for waits in (False, True):
        for frozen, block in ((None, -4.0), (0, -2.0), (1, -2.0)):
            for strategy, named in [(each, True) for each in strategies] + [(strategies[-1], False)]:
                got = train(strategy, -1 if frozen is None else frozen, named=named, waits=waits)
                if rank == 0:
                    case = f"{strategy.name}, use_orig_params={named}, no_sync={waits}, {frozen=}"
                    print(f"{case}: expected {[-4.0, block]}, got {got}", flush=True)
                    if got != [-4.0, block]:
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
