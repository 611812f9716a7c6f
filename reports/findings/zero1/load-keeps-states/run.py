"""ZeroRedundancyOptimizer: a load keeps the states of parameters that had none when the state was saved."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.optim import ZeroRedundancyOptimizer

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of both weights, or of the first one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))

    def forward(self, both: bool) -> torch.Tensor:
        return (self.first + self.second).sum() if both else self.first.sum()


def make(sharded: bool) -> tuple[Model, torch.optim.Optimizer]:
    """A model, and SGD with momentum."""
    model = Model()
    if sharded:
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1, momentum=0.5)
    return model, torch.optim.SGD(model.parameters(), lr=1, momentum=0.5)


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The whole state on every rank; rank by rank, as each consolidation is for one."""
    found: dict[str, Any] = {}
    for rank in range(RANKS):
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            optimizer.consolidate_state_dict(rank)
        if rank == dist.get_rank():
            found = optimizer.state_dict()
    return found


def value_after(sharded: bool) -> float:
    """The second weight after a step from a state that was saved before it had trained, and loaded after it had."""
    model, optimizer = make(sharded)

    def step(both: bool) -> None:
        optimizer.zero_grad()
        model(both).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad.div_(RANKS))
        optimizer.step()

    step(both=False)
    saved = copy.deepcopy((model.state_dict(), state_of(optimizer)))
    step(both=True)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    step(both=True)
    return float(model.second[0])


def on_rank(rank: int, folder: str) -> None:
    """With torch's SGD, and with its shards; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for sharded in (False, True):
        value = value_after(sharded)
        if rank == 0:
            print(f"{'ZeroRedundancyOptimizer' if sharded else 'SGD'}: expected -1.0, got {value}", flush=True)
            if value != -1.0:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if the weight has moved by a momentum that was not saved."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
