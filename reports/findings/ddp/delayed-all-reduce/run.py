"""DDP: the backward does not wait for the all-reduce of delay_all_reduce_named_params, which raises in 16 bits."""

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
from torch.nn.parallel import DistributedDataParallel

RANKS, WIDTH = 2, 3000
DTYPES = torch.float32, torch.bfloat16


def gradient(dtype: torch.dtype) -> str:
    """The delayed gradient right after the backward, or the error; rank r gives r + 1 to each element."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=False)).to(dtype)
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    delayed = [("1.weight", model[1].weight)]
    try:
        module = DistributedDataParallel(
            model,
            delay_all_reduce_named_params=delayed,
            param_to_hook_all_reduce=model[0].weight,
        )
        loss = module(torch.zeros(1, 1, dtype=dtype)).sum() * (dist.get_rank() + 1)
        loss.backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).partition('.')[0]}"
    found = model[1].weight.grad
    assert found is not None
    return f"{float(found.min())} to {float(found.max())}"


def on_rank(rank: int, folder: str) -> None:
    """Each case; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    expected = "1.5 to 1.5"
    for dtype in DTYPES:
        got = gradient(dtype)
        dist.barrier()
        if got != expected:
            Path(folder, "wrong").touch()
        if rank == 0:
            print(f"{dtype}: expected {expected}, got {got}", flush=True)


def main() -> int:
    """1 if a gradient is not the mean of the ranks'."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
