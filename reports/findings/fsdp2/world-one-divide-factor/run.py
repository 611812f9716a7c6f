"""FSDP2 with one shard: a custom gradient divide factor with a forced sum divides the gradient twice."""

from __future__ import annotations

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

FACTOR = 4.0


def gradient(*shape: int) -> float:
    """The gradient, which is 1 on every rank, after the sum over the ranks and the division by the factor."""
    model = nn.Linear(4, 4, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :]))
    model.set_force_sum_reduction_for_comms(True)
    model.set_gradient_divide_factor(FACTOR)
    model(torch.ones(1, 4)).sum().backward()
    return float(model.weight.grad.full_tensor()[0, 0])


def on_rank(rank: int, ranks: int, folder: str) -> None:
    """Compare with ranks / FACTOR."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks)
    for shape in ((ranks,), (ranks, 1)):
        expected, got = ranks / FACTOR, gradient(*shape)
        if rank == 0:
            print(f"mesh {shape}, factor {FACTOR:g}: expected {expected:g}, got {got:g}", flush=True)
            if got != expected:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            mp.spawn(on_rank, (ranks, folder), nprocs=ranks)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
