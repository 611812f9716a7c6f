"""FSDP2: set_reduce_scatter_unused_params raises after accumulation in mixed precision."""

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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

RANKS = 2
#: The dtype of the parameters, and the number of micro-steps; the last one raises.
CASES = ((torch.float32, 2), (torch.bfloat16, 1), (torch.bfloat16, 2))


class Model(torch.nn.Module):
    """The loss is the sum of both weights, or of the first one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))

    def forward(self, both: bool) -> torch.Tensor:
        return (self.first + self.second if both else self.first).float().sum()


def gradient(dtype: torch.dtype, micro_steps: int, both: bool) -> str:
    """The second weight's gradient, or the error of the backward."""
    model = Model()
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    sharded = fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)), mp_policy=policy)
    sharded.set_reduce_scatter_unused_params(True)
    try:
        for micro_step in range(micro_steps):
            sharded.set_requires_gradient_sync(micro_step == micro_steps - 1)
            model(both).backward()
    except (AssertionError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    assert isinstance(model.second.grad, DTensor)
    return str(float(model.second.grad.full_tensor()[0]))


def on_rank(rank: int, folder: str) -> None:
    """Only rank 0 uses the second weight. Rank 1 tells; after its error rank 0 waits for it until it ends."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=20)
    )
    for dtype, micro_steps in CASES:
        got, expected = gradient(dtype, micro_steps, rank == 0), micro_steps / RANKS
        if rank == 1:
            print(f"{dtype}, {micro_steps} micro-step(s), rank 1: expected {expected}, got {got}", flush=True)
            if got != str(expected):
                Path(folder, "wrong").touch()


def main() -> int:
    """1 if a backward raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
