"""fairscale's OSS: a load keeps the states of parameters that had none when the state was saved."""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def make(sharded: bool) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """A parameter, and SGD with momentum."""
    from fairscale.optim.oss import OSS

    parameter = torch.nn.Parameter(torch.zeros(2))
    if sharded:
        return parameter, OSS([parameter], torch.optim.SGD, lr=1.0, momentum=0.5)
    return parameter, torch.optim.SGD([parameter], lr=1.0, momentum=0.5)


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The whole state, which rank 0 sends to all."""
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(recipient_rank=0)
    found = [optimizer.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    assert found[0] is not None
    return found[0]


def value_after(sharded: bool) -> float:
    """The parameter after a step from a state that was saved before the first step, and loaded after it."""
    parameter, optimizer = make(sharded)

    def step() -> None:
        parameter.grad = torch.ones(2)
        optimizer.step()

    saved = copy.deepcopy(state_of(optimizer))
    step()
    with torch.no_grad():
        parameter.zero_()
    optimizer.load_state_dict(saved)
    step()
    return float(parameter[0])


def on_rank(rank: int, folder: str) -> None:
    """With torch's SGD, and with its shards; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for sharded in (False, True):
        value = value_after(sharded)
        if rank == 0:
            print(f"{'OSS' if sharded else 'SGD'}: expected -1.0, got {value}", flush=True)
            if value != -1.0:
                Path(folder, "wrong").touch()
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """1 if the parameter has moved by a momentum that was not saved."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
