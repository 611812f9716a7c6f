"""DDP: a copy of a module with static_graph that has trained reduces no gradient in its first iteration.

Each rank's loss is the sum of the weight times a factor, 0 on rank 0 and 2 on rank 1. The mean gradient is 1, so that
SGD with lr 1 must move the weight by -1 in each step.
"""

from __future__ import annotations

import copy
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
COPIES: dict[str, Callable[[Any], Any]] = {
    "no copy": lambda module: module,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),  # noqa: S301 - its own bytes
}


class Model(torch.nn.Module):
    """The loss is the sum of the weight times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return factor * self.weight.sum()


def train(rank: int, static: bool, made: str) -> float:
    """An element of the weight after two steps, and two with a copy; ``static`` is static_graph."""
    module: Any = DistributedDataParallel(Model(), static_graph=static)
    for steps in (2, 2):
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        for _ in range(steps):
            module.zero_grad()
            module(torch.tensor(2.0 * rank)).backward()
            optimizer.step()
        module = COPIES[made](module)
    return float(module.module.weight[0])


def on_rank(rank: int, folder: str) -> None:
    """Each copy, with and without static_graph; each rank tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for static in (False, True):
        for made in COPIES:
            found: list[float | None] = [None] * RANKS
            dist.all_gather_object(found, train(rank, static, made))
            if rank == 0:
                print(f"static_graph={static}, {made}: expected [-4.0, -4.0] after four steps, got {found}", flush=True)
                if found != [-4.0, -4.0]:
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
