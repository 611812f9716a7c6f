"""DDP: after one gradient that is not finite, powerSGD_hook with error feedback gives no finite gradient any more."""

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
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
#: The scale of each backward's loss; the fifth one overflows, as in a step that a GradScaler skips.
SCALES = 1.0, 1.0, 1.0, 1.0, float("inf"), 1.0, 1.0


def finite(feedback: bool) -> list[bool]:
    """Whether each backward has finite gradients."""
    module = DistributedDataParallel(torch.nn.Linear(4, 4))
    state = PowerSGDState(None, start_powerSGD_iter=2, use_error_feedback=feedback, warm_start=False)
    module.register_comm_hook(state, powerSGD_hook)
    found = []
    for scale in SCALES:
        module.zero_grad()
        (module(torch.ones(1, 4)).sum() * scale).backward()
        found.append(all(bool(p.grad.isfinite().all()) for p in module.parameters() if p.grad is not None))
    return found


def on_rank(rank: int, folder: str) -> None:
    """Train with each setting; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    for feedback in (False, True):
        found = finite(feedback)
        if rank == 0:
            print(f"use_error_feedback={feedback}: expected one backward that is not finite, got {found.count(False)}")
            if found.count(False) != 1:
                Path(folder, "wrong").touch()
    dist.barrier()


def main() -> int:
    """1 if a backward after the one that overflows is not finite."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
