"""FSDP1: all states of a parameter that optim_state_dict returns on a CPU share one memory.

Every gradient is 0.5, so that after the first step of Adam exp_avg is 0.05, and exp_avg_sq is 0.00025.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)

RANKS = 2


class Model(torch.nn.Module):
    """The loss is half of the sum of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum() / 2


def on_rank(rank: int, folder: str) -> None:
    """One step, and the whole states; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    module = FullyShardedDataParallel(Model(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    module().backward()
    optimizer.step()
    whole = FullStateDictConfig(rank0_only=False), FullOptimStateDictConfig(rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(module, StateDictType.FULL_STATE_DICT, *whole):
        [state] = FullyShardedDataParallel.optim_state_dict(module, optimizer)["state"].values()
    if rank == 0:
        for name, expected in (("exp_avg", 0.05), ("exp_avg_sq", 0.00025)):
            got = round(float(state[name][0]), 8)
            shared = state[name].data_ptr() == state["exp_avg_sq"].data_ptr()
            print(f"{name}: expected {expected}, got {got}; in the memory of exp_avg_sq: {shared}")
            if got != expected:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a state is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
