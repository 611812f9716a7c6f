"""FSDP2: a checkpoint of SGD whose schedule has set the momentum to zero so far is saved, and does not load."""

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
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model, and SGD with momentum."""
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def save_and_load(folder: str, momentum: float) -> str:
    """One step with a momentum, a save, and a load as torch's tutorial has it; the error of the load, if any."""
    model, optimizer = make()
    optimizer.param_groups[0]["momentum"] = momentum
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"{folder}/{momentum}")
    of_model, of_optimizer = get_state_dict(*make())
    try:
        load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"{folder}/{momentum}")
    except BaseException:  # noqa: BLE001 - torch raises a BaseException; it is the finding
        return next(line for line in reversed(traceback.format_exc().splitlines()) if line)
    return "it loads"


def on_rank(rank: int, folder: str) -> None:
    """With the optimizer's momentum, and with the zero that a schedule sets; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {momentum: save_and_load(folder, momentum) for momentum in (0.9, 0.0)}
    if rank == 0:
        for momentum, told in found.items():
            print(f"saved after a step with momentum {momentum}: expected it loads, got {told}", flush=True)
        if found[0.0] != found[0.9] == "it loads":
            Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if the checkpoint does not load."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
