"""DDP with static_graph: if the module returns a dataclass, the first iteration reduces no gradient.

Each rank's loss is the sum of the weight times a factor, 0 on rank 0 and 2 on rank 1. The mean gradient is 1, so that
SGD with lr 1 must move the weight by -1 in each step.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


@dataclass
class Output:
    """What a model returns."""

    loss: torch.Tensor


class Named(OrderedDict[str, torch.Tensor]):
    """A class of its own that is a dictionary."""


#: What the model returns, and how the client takes the loss from it.
OUTPUTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a dict": (lambda loss: {"loss": loss}, lambda output: output["loss"]),
    "a dataclass": (Output, lambda output: output.loss),
    "a subclass of OrderedDict": (lambda loss: Named(loss=loss), lambda output: output["loss"]),
}


class Model(torch.nn.Module):
    """The loss is the sum of the weight times a factor."""

    def __init__(self, returned: Callable[[Any], Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))
        self.returned = returned

    def forward(self, factor: torch.Tensor) -> Any:
        return self.returned(factor * self.weight.sum())


def train(rank: int, static: bool, output: str) -> float:
    """An element of the weight after three steps; ``static`` is static_graph."""
    make, loss_of = OUTPUTS[output]
    module: Any = DistributedDataParallel(Model(make), static_graph=static)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(3):
        module.zero_grad()
        loss_of(module(torch.tensor(2.0 * rank))).backward()
        optimizer.step()
    return float(module.module.weight[0])


def on_rank(rank: int, folder: str) -> None:
    """Each output, with and without static_graph; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for static in (False, True):
        for output in OUTPUTS:
            found: list[float | None] = [None] * RANKS
            dist.all_gather_object(found, train(rank, static, output))
            if rank == 0:
                what = f"static_graph={static}, {output}"
                print(f"{what}: expected [-3.0, -3.0] after three steps, got {found}", flush=True)
                if found != [-3.0, -3.0]:
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
