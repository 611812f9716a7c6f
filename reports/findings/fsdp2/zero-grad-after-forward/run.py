"""FSDP2: zero_grad() of the module after a forward leaves gradients of the step before in place: between forward and
backward, and after an evaluation, a forward without a backward, or one that raises.

The loss is the sum of the weight, so that each step's gradient is 1, and SGD with lr 1 must move the weight by -1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2
ORDERS = (
    "before the forward",
    "after the forward",
    "after an evaluation",
    "after a forward without a backward",
    "after a forward that raises",
)


class Model(torch.nn.Module):
    """The loss is the sum of the weight; the forward may raise in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, *, fails: bool = False) -> torch.Tensor:
        if fails:
            raise ValueError
        return self.weight.sum()


def train(reshards: bool | None, order: str) -> float:
    """An element of the weight after three steps; ``reshards`` is reshard_after_forward."""
    module = Model()
    fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)), reshard_after_forward=reshards)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for _ in range(3):
        if order == "after an evaluation":
            with torch.no_grad():
                module()
        if order == "after a forward without a backward":
            module()
        if order == "after a forward that raises":
            with suppress(ValueError):
                module(fails=True)
        if order != "after the forward":
            module.zero_grad()
        loss = module()
        if order == "after the forward":
            module.zero_grad()
        loss.backward()
        optimizer.step()
    return module.weight.full_tensor()[0].item()  # type: ignore[operator]


def on_rank(rank: int, folder: str) -> None:
    """Each setting, with zero_grad() at each moment; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for reshards in (True, False, None):
        for order in ORDERS:
            got = train(reshards, order)
            if rank == 0:
                what = f"reshard_after_forward={reshards}, module.zero_grad() {order}"
                print(f"{what}: expected -3.0 after three steps, got {got}", flush=True)
                if got != -3.0:
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
