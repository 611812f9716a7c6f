"""DDP with static_graph: if the first backward is in no_sync, the ranks' gradients are never reduced again."""

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
from torch.nn.parallel import DistributedDataParallel

RANKS, STEPS = 2, 3


def gradient(model: DistributedDataParallel, rank: int) -> float:
    """Two micro-steps, the first in no_sync; the gradient of rank r's loss is r + 1 in each."""
    model.zero_grad(set_to_none=True)
    batch = torch.full((1, 4), rank + 1.0)
    with model.no_sync():
        model(batch).sum().backward()
    model(batch).sum().backward()
    [weight] = model.parameters()
    assert weight.grad is not None
    return float(weight.grad[0, 0])


def on_rank(rank: int, folder: str) -> None:
    """The mean over the ranks of the sum over the micro-steps is 3."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False), static_graph=True)
    for step in range(STEPS):
        try:
            got = f"{gradient(model, rank):g}"
        except RuntimeError:
            got = next(line for line in traceback.format_exc().splitlines() if "Error:" in line)[:100]
        print(f"step {step} rank {rank}: expected 3, got {got}", flush=True)
        if got != "3":
            Path(folder, "wrong").touch()


def main() -> int:
    """1 if a gradient is wrong or a backward raises."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
