"""DDP over gloo: powerSGD_hook hangs if its callbacks for two buckets run at once."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
STEPS = 50
#: Seconds; the steps take about one.
LIMIT = 60


def on_rank(rank: int, layers: int, folder: str) -> None:
    """Train; each layer has a bucket of its own."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{layers}", rank=rank, world_size=RANKS)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(layers)))
    module = DistributedDataParallel(model, bucket_cap_mb=0.001)
    module.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    for step in range(STEPS):
        module(torch.ones(1, 64)).sum().backward()
        Path(folder, f"{layers}-{rank}").write_text(str(step + 1), encoding="utf-8")
    dist.barrier()


def outcome(layers: int, folder: str) -> str:
    """How many steps the ranks finished, within the limit."""
    ranks = mp.spawn(on_rank, (layers, folder), nprocs=RANKS, join=False)
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if ranks.join(timeout=1):
            return f"trained {STEPS} steps"
    for process in ranks.processes:
        process.kill()
    return f"hung after {Path(folder, f'{layers}-0').read_text(encoding='utf-8')} steps"


def main() -> int:
    """1 if the ranks hang with several buckets."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for layers in (1, 8):
            found[layers] = outcome(layers, folder)
            print(f"{layers} layers: expected {STEPS} steps, {found[layers]}")
    return int("hung" in found[8])


if __name__ == "__main__":
    sys.exit(main())
