"""DDP over gloo: quantization_pertensor_hook and quantization_perchannel_hook raise in the first backward."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as hooks
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def outcome(name: str) -> str:
    """The end of a backward with a hook."""
    module = DistributedDataParallel(torch.nn.Linear(512, 1))
    module.register_comm_hook(dist.group.WORLD, getattr(hooks, name))
    try:
        module(torch.ones(1, 512)).sum().backward()
    except RuntimeError as error:
        cause = str(error).partition("IndexError: ")[2].splitlines()[0]
        return f"RuntimeError ({cause.partition('.')[0]})"
    return "a gradient"


def on_rank(rank: int, folder: str) -> None:
    """Each hook once; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for name in ("quantization_pertensor_hook", "quantization_perchannel_hook"):
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
