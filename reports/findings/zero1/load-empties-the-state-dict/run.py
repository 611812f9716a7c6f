"""ZeroRedundancyOptimizer: a load takes the other ranks' states out of the caller's state dict."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.optim import ZeroRedundancyOptimizer

RANKS = 2


def states_after_load(sharded: bool) -> int:
    """The parameters whose momentum a checkpoint on rank 0 still has after an optimizer has loaded it."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    if sharded:
        optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=1, momentum=0.5)
    else:
        optimizer = torch.optim.SGD(parameters, lr=1, momentum=0.5)
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    optimizer.step()
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(0)
    checkpoint = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(checkpoint)
    [state] = checkpoint
    optimizer.load_state_dict(state)
    return sum(each is not None for each in state["state"].values())


def on_rank(rank: int, folder: str) -> None:
    """With torch's SGD, and with its shards; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for sharded in (False, True):
        found = states_after_load(sharded)
        if rank == 0:
            name = "ZeroRedundancyOptimizer" if sharded else "SGD"
            print(f"{name}: expected 2 states in the loaded state dict, got {found}", flush=True)
            if found != 2:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a load has emptied the caller's state dict."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
