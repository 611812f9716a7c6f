"""DDP: with a communication hook, Join(divide_by_initial_world_size=False) counts ranks that are out of batches, too.

Of two ranks the second has one batch, the first two. Each gradient is 1 for each element, so that the mean over the
ranks that have a batch is 1 in both steps, and SGD with lr=1 moves the weights by -1 twice.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

BATCHES = (2, 1)
HOOKS = {
    "no hook": None,
    "allreduce_hook": default_hooks.allreduce_hook,
    "fp16_compress_hook": default_hooks.fp16_compress_hook,
}


def trained(rank: int, hook: Any) -> float:
    """The first weight at the end; all weights begin at 0."""
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    module = DistributedDataParallel(model)
    if hook is not None:
        module.register_comm_hook(dist.group.WORLD, hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    with Join([module], divide_by_initial_world_size=False):
        for _ in range(BATCHES[rank]):
            optimizer.zero_grad()
            module(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    return float(model.weight[0, 0])


def on_rank(rank: int, folder: str, found: Any) -> None:
    """Train with each hook."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=len(BATCHES))
    for name, hook in HOOKS.items():
        weight = trained(rank, hook)
        if rank == 0:
            found[name] = weight
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """1 if a hook changes the weights."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        found = manager.dict()
        mp.spawn(on_rank, (folder, found), nprocs=len(BATCHES))
        for name, weight in found.items():
            print(f"{name}: expected -2.0, got {weight}")
        return int(any(weight != -2.0 for weight in found.values()))


if __name__ == "__main__":
    sys.exit(main())
