"""fairscale: a block that is frozen in the last backward before a step steps with its own rank's gradients.

The loss is the sum of two weights times a factor, whose mean over the ranks is 2. A step has two backwards, each of a
half of the loss, the first within no_sync(); in the second one the block's weight is frozen. With SGD of lr 1 each of
two steps must move the own weight by -2 and the block's by -1.
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


def train(frozen: int) -> list[float]:
    """An element of each weight; the block is frozen in backward ``frozen``."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = Model()
    optimizer = OSS(model.parameters(), torch.optim.SGD, lr=1.0)
    module = ShardedDataParallel(model, optimizer, warn_on_trainable_params_changed=False)
    for _ in range(STEPS):
        module.zero_grad()
        for number in range(2):
            model.block.requires_grad_(number != frozen)
            with module.no_sync() if number == 0 else nullcontext():
                (module(1.0 + 2.0 * dist.get_rank()) / 2).backward()
        optimizer.step()
    return [p[0].item() for p in model.parameters()]


def on_rank(rank: int, folder: str) -> None:
    """Frozen in no backward, in the first, and in the second."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for frozen, block in ((None, -4.0), (0, -2.0), (1, -2.0)):
        everyone: list[list[float]] = [[] for _ in range(RANKS)]
        dist.all_gather_object(everyone, train(-1 if frozen is None else frozen))
        if rank == 0:
            print(f"{frozen=}: expected {[-4.0, block]} on each rank, got {everyone}", flush=True)
            if everyone != [[-4.0, block]] * RANKS:
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
