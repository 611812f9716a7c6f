"""FSDP2: the backward of a loss that a block computes after its output, and keeps in an attribute, raises.

A block has an auxiliary head on its output, and keeps the head's loss in an attribute, from which the model takes it.
The gradient of each element of the block's layer is 1.
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
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Block(torch.nn.Module):
    """A layer, and an auxiliary head on its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
        torch.nn.init.eye_(self.layer.weight)
        torch.nn.init.eye_(self.head.weight)
        self.loss = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x)
        self.loss = self.head(output).mean()
        return output


class Model(torch.nn.Module):
    """The mean of a block's output, and the block's own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.block(x).mean()
        return loss + self.block.loss


ENGINES = "DDP", "FSDP2, reshard_after_forward=False", "FSDP2, reshard_after_forward=True"


def train(engine: str) -> float | str:
    """The gradient of an element of the block's layer, or the error of the backward."""
    model = Model()
    module: torch.nn.Module = model
    if engine == "DDP":
        module = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        fully_shard(model.block, mesh=mesh, reshard_after_forward=engine.endswith("True"))
        fully_shard(model, mesh=mesh)
    try:
        module(torch.ones(1, 2)).backward()
    except RuntimeError as error:
        return f"RuntimeError: {str(error)[:120]}"
    gradient = model.block.layer.weight.grad
    whole = gradient if engine == "DDP" else gradient.full_tensor()  # type: ignore[union-attr,operator]
    return whole[0, 0].item()  # type: ignore[union-attr]


def on_rank(rank: int, folder: str) -> None:
    """With each engine; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for engine in ENGINES:
        got = train(engine)
        if rank == 0:
            print(f"{engine}: expected the gradient 1.0, got {got}", flush=True)
            if got != 1.0:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong, or a backward raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
