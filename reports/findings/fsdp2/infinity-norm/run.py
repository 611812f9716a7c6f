"""FSDP2: clip_grad_norm_ with the infinity norm raises on a rank whose shard of a parameter is empty."""

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
from torch.distributed.tensor import DTensor

RANKS = 2
#: The rows of the weight, the norm's type, and the norm of the gradient, which is 2 everywhere; the last one raises.
CASES = ((2, "inf", 2.0), (1, "2.0", 4.0), (1, "inf", 2.0))


def norm(rows: int, kind: str) -> str:
    """The norm of the gradient, or the error."""
    model = torch.nn.Linear(4, rows, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    model(torch.ones(2, 4)).sum().backward()
    try:
        found = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=float(kind))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return str(float(found.full_tensor() if isinstance(found, DTensor) else found))


def on_rank(rank: int, folder: str) -> None:
    """Each norm; rank 1, which has the empty shard, tells. Rank 0 waits for it until it ends."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=20)
    )
    for rows, kind, expected in CASES:
        got = norm(rows, kind)
        if rank == 1:
            print(f"weight of {rows} row(s), norm {kind}, rank 1: expected {expected}, got {got}", flush=True)
            if got != str(expected):
                Path(folder, "wrong").touch()


def main() -> int:
    """1 if a norm raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
