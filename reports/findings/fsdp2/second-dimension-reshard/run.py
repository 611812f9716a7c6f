"""FSDP2: with shards of the second dimension and a number as reshard_after_forward, the backward raises."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

RANKS = 4
#: The dimension of the shards, and reshard_after_forward; the last one raises.
CASES: tuple[tuple[int, bool | int], ...] = ((0, 2), (1, True), (1, 2))


def gradient(dimension: int, reshard: bool | int) -> str:
    """A gradient of the inner layer, or the error of the backward."""
    layer = torch.nn.Linear(8, 8, bias=False)
    model = torch.nn.Sequential(layer)
    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(layer, mesh=mesh, shard_placement_fn=lambda _: Shard(dimension), reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh)
    loss = model(torch.ones(2, 8)).sum()
    try:
        loss.backward()
    except IndexError as error:
        return f"{type(error).__name__}: {error}"
    assert isinstance(layer.weight.grad, DTensor)
    return str(float(layer.weight.grad.full_tensor()[0, 0]))


def on_rank(rank: int, folder: str) -> None:
    """Each placement; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=20)
    )
    for dimension, reshard in CASES:
        got = gradient(dimension, reshard)
        if rank == 0:
            print(f"Shard({dimension}), reshard_after_forward={reshard}: expected 2.0, got {got}", flush=True)
            if got != "2.0":
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a backward raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
