"""FSDP2: after an evaluation between backward and step, the next forward has the weights of before the step.

The loss is the sum of the weight, so that SGD with lr 1 must move it from 0 to -1, and the next loss must be -8.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def train(reshards: bool | None, evaluates: bool) -> float:
    """The loss after one step; ``reshards`` is reshard_after_forward."""
    module = Model()
    fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)), reshard_after_forward=reshards)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module().backward()
    if evaluates:
        with torch.no_grad():
            module()
    optimizer.step()
    return module().item()


def on_rank(rank: int, folder: str) -> None:
    """Each setting, with and without the evaluation; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for reshards in (True, False, None):
        for evaluates in (False, True):
            got = train(reshards, evaluates)
            if rank == 0:
                what = f"reshard_after_forward={reshards}, evaluation={evaluates}"
                print(f"{what}: expected the loss -8.0 after the step, got {got}", flush=True)
                if got != -8.0:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a loss is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
