"""FSDP1: set_model_state_dict with broadcast_from_rank0 raises if a model registers a module twice."""

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
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2


class Model(torch.nn.Module):
    """Two linears: of their own, with one weight, or one linear under both names."""

    def __init__(self, shares: str) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = self.first if shares == "module" else torch.nn.Linear(2, 2)
        if shares == "weight":
            self.second.weight = self.first.weight


def load(shares: str, broadcasts: bool) -> str:
    """ "loaded", or the error of a load of the model's own state dict."""
    model = FullyShardedDataParallel(
        Model(shares), sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True, device_id=torch.device("cpu")
    )
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcasts)
    try:
        set_model_state_dict(model, {} if broadcasts and dist.get_rank() else state, options=options)
    except RuntimeError as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return "loaded"


def on_rank(rank: int, folder: str) -> None:
    """Load each state dict; each rank tells in its turn."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for broadcasts in (False, True):
        for shares in ("nothing", "weight", "module"):
            got = load(shares, broadcasts)
            for turn in range(RANKS):
                dist.barrier()
                if rank == turn:
                    where = f"broadcast_from_rank0={broadcasts}, two names share {shares}, rank {rank}"
                    print(f"{where}: expected loaded, got {got[:200]}", flush=True)
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
