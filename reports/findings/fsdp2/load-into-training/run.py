"""FSDP2: a load drops the optimizer states of parameters that have none, or are frozen, in the optimizer that loads."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

RANKS = 2
BEFORE = (
    "no step",
    "a step",
    "a step of the first weight",
    "a step without momentum",
    "freezing the second weight",
)


class Model(torch.nn.Module):
    """The loss is the sum of both weights, or of the first one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))

    def forward(self, both: bool) -> torch.Tensor:
        return (self.first + self.second).sum() if both else self.first.sum()


def make() -> tuple[Any, torch.optim.Optimizer]:
    """A sharded model, and SGD with momentum."""
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    return model, torch.optim.SGD(model.parameters(), lr=1, momentum=0.5)


def step(model: Any, optimizer: torch.optim.Optimizer, both: bool) -> None:
    """One step."""
    optimizer.zero_grad()
    model(both).backward()
    optimizer.step()
    optimizer.zero_grad()


def state(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """As torch's tutorial has it."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def value_after(before: str, folder: str) -> str:
    """The second weight after two steps, of which the first one's state is saved, and loaded after other steps; or the
    error of the load."""
    model, optimizer = make()
    step(model, optimizer, both=True)
    save(state(model, optimizer), checkpoint_id=f"{folder}/{before}")
    model, optimizer = make()
    if before != "no step":
        optimizer.param_groups[0]["momentum"] = 0.0 if before == "a step without momentum" else 0.5
        step(model, optimizer, both=before != "a step of the first weight")
    if before == "freezing the second weight":
        model.second.requires_grad_(False)
    loaded = state(model, optimizer)
    load(loaded, checkpoint_id=f"{folder}/{before}")
    try:
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).partition('. ')[0]}"
    model.second.requires_grad_(True)
    assert optimizer.param_groups[0]["momentum"] == 0.5  # it is loaded
    step(model, optimizer, both=True)
    assert isinstance(model.second, DTensor)
    return str(float(model.second.full_tensor()[0]))


def on_rank(rank: int, folder: str) -> None:
    """With each history of the optimizer that loads; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for before in BEFORE:
        value = value_after(before, folder)
        if rank == 0:
            print(f"load after {before}: expected -2.5, got {value}", flush=True)
            if value != "-2.5":
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a load has dropped a momentum, or raised."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
