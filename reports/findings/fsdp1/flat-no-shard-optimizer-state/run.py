"""FSDP1: with NO_SHARD and use_orig_params=False the optimizer's state dict has shards, so that it is not saved or does
not load."""

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
from torch.distributed.checkpoint import CheckpointException, async_save, load, save
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2


def state_of(original: bool, rows: int, *, trained: bool) -> dict[str, Any]:
    """The state dicts of a model and its optimizer."""
    model = FullyShardedDataParallel(
        torch.nn.Linear(4, rows),
        sharding_strategy=ShardingStrategy.NO_SHARD,
        use_orig_params=original,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if trained:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def saved_and_loaded(original: bool, rows: int, folder: Path) -> str:
    """ "loaded", or the error of a load into a new model."""
    save(state_of(original, rows, trained=True), checkpoint_id=folder, process_group=dist.group.WORLD)
    template = state_of(original, rows, trained=False)
    try:
        load(template, checkpoint_id=folder, process_group=dist.group.WORLD)
    except CheckpointException as error:
        return str(error).strip().splitlines()[-1]
    return "loaded"


def saved_behind(original: bool, folder: Path) -> str:
    """ "saved", or the error of async_save."""
    state = state_of(original, 2, trained=True)
    try:
        async_save(state, checkpoint_id=folder, process_group=dist.group.WORLD).result()  # type: ignore[union-attr]
    except RuntimeError as error:
        return " ".join(str(error).split())[:40]
    return "saved"


def tell(what: str, expected: str, got: str, folder: str) -> None:
    """Rank 0 prints the line."""
    if dist.get_rank() == 0:
        print(f"{what}: expected {expected}, got {got}", flush=True)
        if got != expected:
            Path(folder, "wrong").touch()


def on_rank(rank: int, folder: str) -> None:
    """Save and load in each way."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for original in (True, False):
        name = f"use_orig_params={original}"
        for rows in (2, 1):
            got = saved_and_loaded(original, rows, Path(folder, f"{name}-{rows}"))
            tell(f"{name}, {rows} rows", "loaded", got, folder)
        tell(f"{name}, async_save", "saved", saved_behind(original, Path(folder, name)), folder)


def main() -> int:
    """1 if a load raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
