"""FSDP2: set_model_state_dict with full_state_dict raises if a model registers a module twice."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS = 2


class Model(torch.nn.Module):
    """Two linears: of their own, with one weight, or one linear under both names."""

    def __init__(self, shares: str) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = self.first if shares == "module" else torch.nn.Linear(2, 2)
        if shares == "weight":
            self.second.weight = self.first.weight


def load(shares: str, full: bool) -> str:
    """ "loaded", or the error of a load of the model's own state dict."""
    model = Model(shares)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    options = StateDictOptions(full_state_dict=full)
    try:
        set_model_state_dict(model, get_model_state_dict(model, options=options), options=options)
    except RuntimeError as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return "loaded"


def on_rank(rank: int, folder: str) -> None:
    """Load each state dict; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for full in (False, True):
        for shares in ("nothing", "weight", "module"):
            got = load(shares, full)
            if rank == 0:
                print(f"full_state_dict={full}, two names share {shares}: expected loaded, got {got[:200]}", flush=True)
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
