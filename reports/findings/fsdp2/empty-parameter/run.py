"""FSDP2: the backward raises if the model has a parameter with no element, which fully_shard accepts."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2


class Model(nn.Module):
    """A linear layer, and a parameter with no element, whose sum is 0."""

    def __init__(self, empty: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.empty = nn.Parameter(torch.zeros(0)) if empty else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.layer(x).sum()
        return loss if self.empty is None else loss + self.empty.sum()


def train(empty: bool) -> str:
    """One forward and backward: the exception, or nothing."""
    model = Model(empty)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    try:
        model(torch.ones(2, 4)).backward()
    except RuntimeError as error:
        return f"RuntimeError: {str(error)[:200]}"
    return "nothing"


def on_rank(rank: int, folder: str) -> None:
    """With and without the parameter."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for empty in (False, True):
        got = train(empty)
        if rank == 0:
            print(f"empty={empty}: expected no exception, raised {got}", flush=True)
            if got != "nothing":
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if it raises."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
