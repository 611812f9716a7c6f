"""FSDP1: set_state_dict with broadcast_from_rank0 hangs if the other ranks have no state."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

#: Seconds; a load takes less than one.
RANKS, LIMIT = 2, 10
OPTIONS = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
#: The one that hangs is the last.
CASES = (
    "two functions, rank 1 has no state",
    "set_state_dict, rank 1 has the state",
    "set_state_dict, rank 1 has no state",
)


def make(value: float) -> tuple[Any, torch.optim.Optimizer]:
    """A model on every rank whose weights are all this value, and Adam."""
    inner = torch.nn.Linear(4, 4)
    for parameter in inner.parameters():
        torch.nn.init.constant_(parameter, value)
    model = FullyShardedDataParallel(
        inner, sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True, device_id=torch.device("cpu")
    )
    return model, torch.optim.Adam(model.parameters())


def put(case: str, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Load a state in which all weights are 1."""
    source = make(1.0)
    of_model, of_optimizer = get_state_dict(*source, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() > 0 and case.endswith("no state"):
        of_model, of_optimizer = {}, {}
    if case.startswith("two"):
        set_model_state_dict(model, of_model, options=OPTIONS)
        set_optimizer_state_dict(model, optimizer, of_optimizer, options=OPTIONS)
    else:
        set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer, options=OPTIONS)


def outcome(case: str) -> str:
    """A weight on this rank after the load, or the end of a load that fails."""
    model, optimizer = make(0.0)
    try:
        put(case, model, optimizer)
    except RuntimeError as error:
        return f"no return in {LIMIT} s" if "Timed out" in str(error) else f"{type(error).__name__}: {error}"
    return str(float(next(model.parameters()).flatten()[0]))


def on_rank(rank: int, folder: str) -> None:
    """Write each outcome into a file; at the end wait until the other rank has its last one."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=LIMIT)
    )
    for case in CASES:
        Path(folder, f"{case}, rank {rank}").write_text(outcome(case))
    end = time.monotonic() + 2 * LIMIT
    while not Path(folder, f"{CASES[-1]}, rank {1 - rank}").exists() and time.monotonic() < end:
        time.sleep(0.1)


def main() -> int:
    """1 if a rank has not loaded."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        for case in CASES:
            for rank in range(RANKS):
                got = Path(folder, f"{case}, rank {rank}").read_text()
                print(f"{case}; rank {rank}: expected 1.0, got {got}")
                wrong = wrong or got != "1.0"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
