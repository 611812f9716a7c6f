"""FSDP2: set_optimizer_state_dict with full_state_dict raises if the optimizer has no states."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2


def load(momentum: float, full: bool) -> str:
    """ "loaded", or the error of a load of the optimizer's own state dict after a step."""
    model = torch.nn.Linear(2, 2)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    options = StateDictOptions(full_state_dict=full)
    try:
        state = get_optimizer_state_dict(model, optimizer, options=options)
        set_optimizer_state_dict(model, optimizer, state, options=options)
    except (AssertionError, RuntimeError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return "loaded"


def on_rank(rank: int, folder: str) -> None:
    """Load each state dict; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for full in (False, True):
        for momentum in (0.9, 0.0):
            got = load(momentum, full)
            if rank == 0:
                print(f"full_state_dict={full}, momentum {momentum}: expected loaded, got {got[:200]}", flush=True)
                if got != "loaded":
                    Path(folder, "wrong").touch()


def main() -> int:
    """1 if a load raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
