"""FSDP2 with reentrant checkpointing: a block that is called twice in a forward gets a part of its gradient."""

from __future__ import annotations

import os
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
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

RANKS = 2


class Model(nn.Module):
    """``stem``, then ``block`` twice, each call under checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.block, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 4), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x.sum()


def gradient(sharded: bool, reentrant: bool) -> torch.Tensor:
    """The whole gradient of the block's weight."""
    torch.manual_seed(0)
    model = Model(reentrant)
    if sharded:
        mesh = init_device_mesh("cpu", (RANKS,))
        fully_shard(model.block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    model(torch.ones(2, 4)).backward()
    found = model.block.weight.grad
    assert found is not None
    return found.full_tensor() if isinstance(found, DTensor) else found


def on_rank(rank: int, folder: str) -> None:
    """Compare with the same model in one process, without a wrapper; all ranks have the same batch."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for reentrant in (False, True):
        expected, got = gradient(False, reentrant), gradient(True, reentrant)
        if rank == 0:
            print(f"use_reentrant={reentrant}: expected {expected[0].tolist()}")
            print(f"use_reentrant={reentrant}: got      {got[0].tolist()}", flush=True)
            if not torch.allclose(got, expected):
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
