"""FSDP2: if the first forward is in torch.inference_mode(), training raises.

A validation before the training, as Trainers make it to find errors early, is such a forward.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2
MODES: tuple[Callable[[], AbstractContextManager[Any]], ...] = (torch.no_grad, torch.inference_mode)


def train(mode: Callable[[], AbstractContextManager[Any]]) -> str:
    """An evaluation and a step; the outcome in words."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    model: Any = fully_shard(layers, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mode():
        model(torch.ones(2, 4))
    model.reshard()
    try:
        model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as error:
        return str(error).partition(".")[0]
    optimizer.step()
    return "a step"


def on_rank(rank: int, folder: str) -> None:
    """With each mode; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for mode in MODES:
        got = train(mode)
        if rank == 0:
            print(f"torch.{mode.__name__}(): expected a step, got {got}", flush=True)
            if got != "a step":
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if training raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
