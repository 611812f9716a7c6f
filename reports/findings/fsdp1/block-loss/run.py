"""FSDP1: without backward_prefetch the backward of a loss that a block keeps in an attribute raises.

A block has an auxiliary head on its output, and keeps the head's loss in an attribute, from which the model takes it.
The model has a layer of its own, or none. The gradient of each element of the block's layer is 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel
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

    def __init__(self, has_layer: bool) -> None:
        super().__init__()
        self.block = Block()
        self.layer: torch.nn.Module = torch.nn.Identity()
        if has_layer:
            self.layer = torch.nn.Linear(2, 2, bias=False)
            torch.nn.init.eye_(self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layer(self.block(x)).mean()
        return loss + self.block.loss


ENGINES = "DDP", "FSDP1", "FSDP1, backward_prefetch=None"


def train(engine: str, has_layer: bool) -> float | str:
    """The gradient of an element of the block's layer, or the error of the backward."""
    model = Model(has_layer)
    weight = model.block.layer.weight
    module: torch.nn.Module = model
    if engine == "DDP":
        module = DistributedDataParallel(model)
    else:
        options: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
        options["backward_prefetch"] = None if engine.endswith("None") else BackwardPrefetch.BACKWARD_PRE
        model.block = FullyShardedDataParallel(model.block, **options)  # type: ignore[assignment]
        module = FullyShardedDataParallel(model, **options)
    try:
        module(torch.ones(1, 2)).backward()
    except RuntimeError as error:
        return f"RuntimeError: {str(error)[:120]}"
    # of FSDP1, the first rank has the layer, and the second the head
    return 0.0 if dist.get_rank() else float(weight.grad.flatten()[0])  # type: ignore[union-attr]


def on_rank(rank: int, folder: str) -> None:
    """With each engine; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for engine, has_layer in product(ENGINES, (True, False)):
        got = train(engine, has_layer)
        if rank == 0:
            root = "a model with a layer of its own" if has_layer else "one without"
            print(f"{engine}, {root}: expected the gradient 1.0, got {got}", flush=True)
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
