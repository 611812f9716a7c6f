"""FSDP2: backward(inputs=parameters) computes no gradient of the parameters that it names.

The loss is the sum of a weight, so that its gradient is 1, and SGD with lr 1 must move the weight by -1, as with
DistributedDataParallel.
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


class Model(torch.nn.Module):
    """The loss is the sum of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return (factor * self.weight).sum()


ENGINES = "DDP", "FSDP2, the parameters of before the forward", "FSDP2, the parameters of after it"


def train(engine: str) -> float:
    """An element of the weight after one step."""
    model = Model()
    module: torch.nn.Module = model
    if engine == "DDP":
        module = DistributedDataParallel(model)
    else:
        fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)), reshard_after_forward=True)
    named = list(model.parameters())
    optimizer = torch.optim.SGD(named, lr=1.0)
    loss = module(torch.ones(8))
    if "after" in engine:
        named = list(model.parameters())
    loss.backward(inputs=named)
    optimizer.step()
    weight = model.weight
    return (weight if engine == "DDP" else weight.full_tensor())[0].item()  # type: ignore[operator]


def on_rank(rank: int, folder: str) -> None:
    """In each kind of engine; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for engine in ENGINES:
        got = train(engine)
        if rank == 0:
            print(f"{engine}: expected the weight -1.0, got {got}", flush=True)
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
