"""fairscale: after an evaluation in torch's inference mode, the next step of ShardedDataParallel raises.

Each evaluation in eval() makes the buckets of gradients anew. In inference mode they are inference tensors, which
zero_grad() may not write to.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
MODES: tuple[Callable[[], AbstractContextManager[Any]], ...] = (torch.no_grad, torch.inference_mode)


def train(mode: Callable[[], AbstractContextManager[Any]]) -> str:
    """Two steps with an evaluation after each; the outcome in words."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=0.1)
    module = ShardedDataParallel(model, optimizer)
    for _ in range(2):
        try:
            module.zero_grad()
        except RuntimeError as error:
            return str(error).partition(".")[0]
        module(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        module.eval()
        with mode():
            module(torch.ones(2, 4))
        module.train()
    return "two steps"


def on_rank(rank: int, folder: str) -> None:
    """With each mode; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for mode in MODES:
        got = train(mode)
        if rank == 0:
            print(f"torch.{mode.__name__}(): expected two steps, got {got}", flush=True)
            if got != "two steps":
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a step raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
