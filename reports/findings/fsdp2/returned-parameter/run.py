"""FSDP2: the process dies if a module returns its own parameter, and the module around it uses that.

A module returns its weight, as one of learned positions does, and the model adds it to a layer's output. The loss is 2.
"""

from __future__ import annotations

import os
import signal
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


class Positions(torch.nn.Module):
    """Learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self) -> torch.Tensor:
        return self.weight


class Model(torch.nn.Module):
    """The mean of a layer's output and the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.layer = Positions(), torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.eye_(self.layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) + self.positions()).mean()


ENGINES = "DDP", "FSDP2, reshard_after_forward=False", "FSDP2, reshard_after_forward=True"


def step(engine: str) -> float:
    """The loss of a step."""
    model = Model()
    module: torch.nn.Module = model
    if engine == "DDP":
        module = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        fully_shard(model.positions, mesh=mesh, reshard_after_forward=engine.endswith("True"))
        fully_shard(model, mesh=mesh)
    loss: torch.Tensor = module(torch.ones(2, 2))
    loss.backward()
    return loss.item()


def on_rank(rank: int, folder: str, engine: str) -> None:
    """Train a step; rank 0 writes its loss."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    loss = step(engine)
    if rank == 0:
        Path(folder, "loss").write_text(str(loss))
    dist.destroy_process_group()


def train(engine: str) -> str:
    """The loss of a step, or the signal that has ended a rank."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = mp.spawn(on_rank, (folder, engine), nprocs=RANKS, join=False)
        try:
            while not ranks.join(grace_period=5.0):  # then it kills the rank that waits for the dead one
                pass
        except mp.ProcessExitedException as error:
            return signal.Signals(-error.exit_code).name if error.exit_code < 0 else str(error)
        return Path(folder, "loss").read_text()


def main() -> int:
    """1 if a loss is wrong, or a rank dies."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = []
    for engine in ENGINES:
        found.append(train(engine))
        print(f"{engine}: expected the loss 2.0, got {found[-1]}", flush=True)
    return int(set(found) != {"2.0"})


if __name__ == "__main__":
    sys.exit(main())
