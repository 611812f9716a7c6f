"""FSDP2: zero_grad() leaves the gradients in place that backwards without a reduction have accumulated.

The loss is the sum of the weight times a factor. A micro-step of factor 100 is dropped by zero_grad(), and the step has
the gradient 1, so that SGD with lr 1 must move the weight by -1.
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
    """The loss is the sum of the weight times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: float) -> torch.Tensor:
        return factor * self.weight.sum()


def train(drops: str) -> float:
    """An element of the weight after one step; ``drops`` names the owner of zero_grad()."""
    module = Model()
    fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    if drops != "nobody":
        module.set_requires_gradient_sync(False)  # type: ignore[operator]
        module(100.0).backward()
        (optimizer if drops == "optimizer" else module).zero_grad()
    module.set_requires_gradient_sync(True)  # type: ignore[operator]
    module(1.0).backward()
    optimizer.step()
    return module.weight.full_tensor()[0].item()  # type: ignore[operator]


def on_rank(rank: int, folder: str) -> None:
    """Without a dropped micro-step, and with one for each zero_grad(); rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for drops in ("nobody", "optimizer", "module"):
        got = train(drops)
        if rank == 0:
            print(f"{drops} drops a micro-step by zero_grad(): expected the weight -1.0, got {got}", flush=True)
            if got != -1.0:
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
