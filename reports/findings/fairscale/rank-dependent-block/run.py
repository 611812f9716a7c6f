"""fairscale ShardedDataParallel: if only some ranks use a block, the ranks hang or die."""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
#: Seconds; the step takes less than one.
LIMIT = 60


class Block(torch.nn.Module):
    """Adds its weight to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight


class Model(torch.nn.Module):
    """The loss is a sum of weights, so that each gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(8) for _ in range(4))

    def forward(self, x: torch.Tensor, used: int) -> torch.Tensor:
        for block in self.blocks[:used]:
            x = block(x)
        return x.sum()


def on_rank(rank: int, folder: str) -> None:
    """One step; only rank 0 uses the last blocks."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = Model()
    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=1.0)
    wrapped = ShardedDataParallel(model, optimizer)
    wrapped(torch.zeros(8), 4 if rank == 0 else 2).backward()
    optimizer.step()
    if rank == 0:
        moved = [f"{float(block.weight[0]):g}" for block in model.blocks]
        Path(folder, "moved").write_text(", ".join(moved), encoding="utf-8")


def outcome(folder: str) -> str:
    """How far each block moved, or how the ranks ended."""
    ranks = mp.spawn(on_rank, (folder,), nprocs=RANKS, join=False)
    end = time.monotonic() + LIMIT
    try:
        while time.monotonic() < end:
            if ranks.join(timeout=1):
                return Path(folder, "moved").read_text(encoding="utf-8")
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"died: {str(error).strip().splitlines()[-1][:150]}"
    for process in ranks.processes:
        process.kill()
    return f"hung for {LIMIT} s"


def main() -> int:
    """1 if the ranks hang or die, or a block moves by another amount."""
    expected = "-1, -1, -0.5, -0.5"
    with tempfile.TemporaryDirectory() as folder:
        got = outcome(folder)
    print(f"moved: expected {expected}, got {got}")
    return int(got != expected)


if __name__ == "__main__":
    sys.exit(main())
