"""FSDP1: on a CPU, a whole state dict with offload_to_cpu reads memory that is freed."""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

RANKS = 2
#: The features of a layer of ones, and offload_to_cpu; the last one reads freed memory.
CASES = ((3, False), (3, True))


def outcome(features: int, offloads: bool) -> str:
    """Whether the whole state is right, on rank 0."""
    layer = torch.nn.Linear(features, 1001, bias=False)
    torch.nn.init.ones_(layer.weight)
    model = FullyShardedDataParallel(layer, device_id=torch.device("cpu"), use_orig_params=True)
    config = FullStateDictConfig(offload_to_cpu=offloads, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    if dist.get_rank():
        return ""
    return "right" if bool((state["weight"] == 1).all()) else "wrong"


def on_rank(rank: int, folder: str, features: int, offloads: bool) -> None:
    """One case; rank 0 writes what became of it."""
    faulthandler.disable()
    warnings.simplefilter("ignore")
    name = f"{features} {offloads}"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store {name}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    try:
        found = outcome(features, offloads)
    except RuntimeError as error:
        found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if rank == 0:
        Path(folder, name).write_text(found)


def main() -> int:
    """1 if a state is not right."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        for features, offloads in CASES:
            try:
                mp.spawn(on_rank, (folder, features, offloads), nprocs=RANKS)
                got = Path(folder, f"{features} {offloads}").read_text()
            except mp.ProcessExitedException as error:
                got = error.signal_name or str(error)
            print(f"{features} features, offload_to_cpu={offloads}: expected right, got {got}", flush=True)
            wrong = wrong or got != "right"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
