"""ZeroRedundancyOptimizer: with views, the updates of a group that was frozen when it was added stay on their owner.

Every weight is 1 and has a gradient of 1, so that a step of SGD at a rate of 1 makes it 0 on every rank.
"""

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


def weights_after(views: bool) -> list[float]:
    """A layer that was frozen is added to the optimizer, then trained, as the documentation of the method has it."""
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]
    trained, added = weights[:2], weights[2:]
    for weight in added:
        weight.requires_grad_(False)
    optimizer = ZeroRedundancyOptimizer(trained, torch.optim.SGD, parameters_as_bucket_view=views, lr=1)
    optimizer.add_param_group({"params": added})
    for weight in weights:
        weight.requires_grad_(True)
        weight.grad = torch.ones(2)
    optimizer.step()
    return [float(weight.detach()[0]) for weight in weights]


def on_rank(rank: int, folder: str) -> None:
    """With views of buckets, and without; the ranks tell one after another."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for views in (False, True):
        found = weights_after(views)
        for turn in range(RANKS):
            if turn == rank:
                print(f"views {views}, rank {rank}: expected [0.0, 0.0, 0.0, 0.0], got {found}", flush=True)
            dist.barrier()
        if any(found):
            Path(folder, "wrong").touch()
    dist.barrier()


def main() -> int:
    """1 if the ranks' weights differ."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
