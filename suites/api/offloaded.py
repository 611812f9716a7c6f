"""A small model that trains with its states in files, for whoever wants to spoil that; also run as a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zerobench
from zerobench.subject import Batch
from zerobench.subjects.reference import Reference


def engine(directory: Path | str, **section: Any) -> zerobench.Engine:
    """An engine of 8,192 elements whose gradient sums, masters and optimizer states lie in files in ``directory``."""
    torch.manual_seed(0)
    offload = {"device": "nvme", "nvme_path": str(directory), "buffer_size": 8192, **section}
    zero = {"stage": 2, "sub_group_size": 2048, "offload_optimizer": offload}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2}}
    config = {"train_batch_size": 1, "optimizer": optimizer, "zero_optimization": zero}
    return zerobench.initialize(nn.Linear(64, 128, bias=False), config)[0]


def step(trained: zerobench.Engine, index: int) -> Tensor:
    """One step on data of its own; returns the loss."""
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(index))
    loss = trained(x).square().mean()
    trained.backward(loss)
    trained.step()
    return loss.detach()  # type: ignore[no-any-return]


def files(trained: zerobench.Engine) -> Iterator[Path]:
    """Its files, which have no name, as paths to open."""
    for file in trained.stores._files:
        yield Path(f"/proc/self/fd/{file._descriptor}")


def spoil(trained: zerobench.Engine) -> None:
    """Change a byte in the middle of every file, behind the engine's back."""
    for path in files(trained):
        with path.open("r+b", buffering=0) as file:
            at = os.fstat(file.fileno()).st_size // 2
            byte = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), at)


class SpoilsItsFile(Reference):
    """Rank 1's file is changed at its second leaf."""

    def micro_step(self, batch: Batch) -> Tensor:
        if self.engine.ranks.rank == 1 and self.engine.micro_steps == 1:
            spoil(self.engine)
        return super().micro_step(batch)


if __name__ == "__main__":
    running = engine(sys.argv[1])
    for number in range(int(sys.argv[2])):
        print(float(step(running, number)), flush=True)
