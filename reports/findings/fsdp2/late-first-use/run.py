"""FSDP2, bf16 parameters and fp32 reduction: a parameter that only the last micro-step uses breaks the backward."""

from __future__ import annotations

import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

RANKS = 2


class Model(nn.Module):
    """``late`` is used only on demand; both layers are in one group of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.late = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, late: bool) -> torch.Tensor:
        x = self.first(x)
        return (self.late(x) if late else x).sum()


def train() -> None:
    """Two micro-steps, the first without a reduction."""
    model = Model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)), mp_policy=policy)
    for last in (False, True):
        model.set_requires_gradient_sync(last)
        model(torch.ones(2, 4), late=last).backward()


def on_rank(rank: int, folder: str) -> None:
    """All ranks do the same."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        train()
        told = "nothing"
    except Exception:  # noqa: BLE001 - the exception is the finding
        told = traceback.format_exc(limit=-1).splitlines()[-1]
        Path(folder, "wrong").touch()
    if rank == 0:
        print(f"expected: no exception, because every rank uses the same parameters\nraised: {told}", flush=True)


def main() -> int:
    """1 if it raises."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
