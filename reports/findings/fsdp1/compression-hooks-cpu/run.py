"""FSDP1 on a CPU: the backward raises with fp16_compress_hook and bf16_compress_hook."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms._comm_hooks import default_hooks as hooks
from torch.distributed.fsdp import FullyShardedDataParallel

RANKS = 2


def outcome(name: str) -> str:
    """The end of a backward with a hook."""
    module = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    if name == "reduce_scatter_hook":
        module.register_comm_hook(hooks.DefaultState(dist.group.WORLD), hooks.reduce_scatter_hook)
    else:
        module.register_comm_hook(hooks.LowPrecisionState(dist.group.WORLD), getattr(hooks, name))
    try:
        module(torch.ones(1, 4)).sum().backward()
    except RuntimeError as error:
        return f"RuntimeError ({error})"
    return "a gradient"


def on_rank(rank: int, folder: str) -> None:
    """Each hook once; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for name in ("reduce_scatter_hook", "fp16_compress_hook", "bf16_compress_hook"):
        found = outcome(name)
        if rank == 0:
            print(f"{name}: expected a gradient, got {found}", flush=True)
            if found != "a gradient":
                Path(folder, "raised").touch()
    dist.barrier()


def main() -> int:
    """1 if a hook raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "raised").exists())


if __name__ == "__main__":
    sys.exit(main())
