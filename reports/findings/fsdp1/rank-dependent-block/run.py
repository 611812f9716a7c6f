"""FSDP1: if only some ranks use a sharded block, the ranks hang or die."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

#: Seconds; the step takes less than one.
RANKS, LIMIT = 2, 60


class Model(nn.Module):
    """``rare`` is called only on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.rare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, used: bool) -> torch.Tensor:
        x = self.always(x)
        return (self.rare(x) if used else x).sum()


def on_rank(rank: int, folder: str) -> None:
    """One step; only rank 0 uses ``rare``."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model, device = Model(), torch.device("cpu")
    model.always = FullyShardedDataParallel(model.always, device_id=device, use_orig_params=True)
    model.rare = FullyShardedDataParallel(model.rare, device_id=device, use_orig_params=True)
    model = FullyShardedDataParallel(model, device_id=device, use_orig_params=True)
    model(torch.ones(2, 4), rank == 0).backward()
    Path(folder, f"done{rank}").touch()


def outcome(folder: str) -> str:
    """How the ranks ended."""
    ranks = mp.spawn(on_rank, (folder,), nprocs=RANKS, join=False)
    end = time.monotonic() + LIMIT
    try:
        while time.monotonic() < end:
            if ranks.join(timeout=1):
                return "both ranks returned"
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"died: {str(error).strip().splitlines()[-1][:150]}"
    for process in ranks.processes:
        process.kill()
    return f"hung for {LIMIT} s"


def main() -> int:
    """1 if the ranks hang or die."""
    with tempfile.TemporaryDirectory() as folder:
        got = outcome(folder)
    print(f"expected both ranks returned, got {got}")
    return int(got != "both ranks returned")


if __name__ == "__main__":
    sys.exit(main())
