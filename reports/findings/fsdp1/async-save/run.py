"""FSDP1: async_save raises if parameters are sharded over two ranks or more."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint import async_save, save
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2


def saved(strategy: ShardingStrategy, waits: bool, folder: Path) -> str:
    """ "saved", or the error of a save of the model's state dict."""
    model = FullyShardedDataParallel(
        torch.nn.Linear(4, 4), sharding_strategy=strategy, use_orig_params=True, device_id=torch.device("cpu")
    )
    state = {"model": get_model_state_dict(model)}
    group = dist.group.WORLD
    try:
        if waits:
            save(state, checkpoint_id=folder, process_group=group)
        else:
            async_save(state, checkpoint_id=folder, process_group=group).result()  # type: ignore[union-attr]
    except RuntimeError as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return "saved"


def on_rank(rank: int, folder: str) -> None:
    """Save in each way; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD):
        for waits in (True, False):
            name = "save" if waits else "async_save"
            got = saved(strategy, waits, Path(folder, f"{strategy.name}-{name}"))
            if rank == 0:
                print(f"{strategy.name}, {name}: expected saved, got {got[:80]}", flush=True)
                if got != "saved":
                    Path(folder, "wrong").touch()


def main() -> int:
    """1 if a save raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
