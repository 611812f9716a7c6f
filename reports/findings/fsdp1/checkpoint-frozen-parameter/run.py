"""FSDP1: a checkpoint that is saved while a block is frozen, before its first gradient, does not load."""

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
from torch.distributed.fsdp import FullyShardedDataParallel

RANKS = 2


class Model(nn.Module):
    """Two blocks, each a unit of FSDP1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (shard(nn.Linear(4, 4)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).sum()


def shard(module: nn.Module) -> nn.Module:
    """A unit."""
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model and its optimizer."""
    model = shard(Model())
    return model, torch.optim.AdamW(model.parameters())


def save_and_load(folder: str) -> None:
    """One step in which the first block is frozen, a save, and a load as torch's tutorial has it."""
    model, optimizer = make()
    model.get_submodule("_fsdp_wrapped_module.first").requires_grad_(False)
    model(torch.ones(2, 4)).backward()
    optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"{folder}/saved")
    of_model, of_optimizer = get_state_dict(*make())
    load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=f"{folder}/saved")


def on_rank(rank: int, folder: str) -> None:
    """All ranks do the same."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        save_and_load(folder)
        told = "nothing"
    except BaseException:  # noqa: BLE001 - torch raises a BaseException; it is the finding
        told = next(line for line in reversed(traceback.format_exc().splitlines()) if line)
        Path(folder, "wrong").touch()
    if rank == 0:
        print(f"expected: the checkpoint that was saved loads\nraised: {told}", flush=True)


def main() -> int:
    """1 if it raises."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
