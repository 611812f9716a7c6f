"""FSDP2: with 16-bit parameters and a reduction in fp32, a module that the first micro-step does not use raises."""

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
#: The dtypes of the parameters and of the reduction, and whether the first micro-step reduces; the last one raises.
CASES = (
    (torch.float32, torch.float32, False),
    (torch.bfloat16, torch.bfloat16, False),
    (torch.bfloat16, torch.float32, True),
    (torch.bfloat16, torch.float32, False),
)


class Model(torch.nn.Module):
    """Two layers; a micro-step may leave the second one out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        found = self.first(x)
        return (found + self.second(x) if both else found).float().sum()


def gradient(parameters: torch.dtype, reduction: torch.dtype, reduces: bool) -> str:
    """An element of the second layer's gradient, or the error of a backward."""
    model = Model()
    mesh, policy = init_device_mesh("cpu", (RANKS,)), MixedPrecisionPolicy(parameters, reduction)
    for layer in (model.first, model.second, model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    try:
        for both in (False, True):
            model.set_requires_gradient_sync(both or reduces)
            model(torch.ones(1, 4), both).backward()
    except AttributeError as error:
        return f"{type(error).__name__}: {error}"
    assert isinstance(model.second.weight.grad, DTensor)
    return str(float(model.second.weight.grad.full_tensor()[0, 0]))


def on_rank(rank: int, folder: str) -> None:
    """Each case; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    for parameters, reduction, reduces in CASES:
        got = gradient(parameters, reduction, reduces)
        if rank == 0:
            when = "each micro-step" if reduces else "the last micro-step"
            print(f"{parameters}, reduced in {reduction} in {when}: expected 1.0, got {got}", flush=True)
            if got != "1.0":
                Path(folder, "wrong").touch()


def main() -> int:
    """1 if a backward raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
