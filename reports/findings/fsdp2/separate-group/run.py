"""FSDP2: set_separate_reduce_scatter_group hangs if an earlier process group has some of the ranks only."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

#: Seconds; a new group takes less than one.
RANKS, LIMIT = 2, 60
#: The ranks of the earlier group; the last one hangs.
CASES = ([0, 1], [0])


def on_rank(rank: int, folder: str, earlier: list[int]) -> None:
    """Train once; rank 0 tells."""
    warnings.simplefilter("ignore")
    name = "-".join(map(str, earlier))
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store {name}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    dist.new_group(earlier)
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    model.set_separate_reduce_scatter_group()
    model(torch.ones(1, 4)).sum().backward()
    assert isinstance(model.weight.grad, DTensor)
    whole = model.weight.grad.full_tensor()
    if rank == 0:
        Path(folder, name).write_text(str(float(whole[0, 0])))
    dist.barrier()


def outcome(folder: str, earlier: list[int]) -> str:
    """An element of the gradient, or what has come of the training."""
    ranks = mp.spawn(on_rank, (folder, earlier), nprocs=RANKS, join=False)
    assert ranks is not None
    end = time.monotonic() + LIMIT
    while not ranks.join(timeout=1):
        if time.monotonic() > end:
            for process in ranks.processes:
                process.kill()
            return f"no return in {LIMIT} s"
    return Path(folder, "-".join(map(str, earlier))).read_text()


def main() -> int:
    """1 if a training does not end."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        for earlier in CASES:
            got = outcome(folder, earlier)
            print(f"earlier group of ranks {earlier}: expected 1.0, got {got}", flush=True)
            wrong = wrong or got != "1.0"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
