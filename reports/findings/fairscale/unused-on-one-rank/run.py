"""fairscale OSS with ShardedDataParallel: weight decay moves an unused parameter on two ranks, and not on one."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Model(torch.nn.Module):
    """The loss does not read ``unused``."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Parameter(torch.ones(8))
        self.unused = torch.nn.Parameter(torch.ones(8))

    def forward(self) -> torch.Tensor:
        return self.used.sum()


def on_rank(rank: int, ranks: int, folder: str) -> None:
    """One step; rank 0 writes both weights."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = Model()
    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=0.5, weight_decay=0.5)
    wrapped = ShardedDataParallel(model, optimizer)
    wrapped().backward()
    optimizer.step()
    if rank == 0:
        Path(folder, "weights").write_text(json.dumps([float(model.used[0]), float(model.unused[0])]), encoding="utf-8")


def train(ranks: int) -> list[float]:
    """The weights after a step, which should not depend on the number of ranks: all have the same gradients."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (ranks, folder), nprocs=ranks)
        found: list[float] = json.loads(Path(folder, "weights").read_text(encoding="utf-8"))
        return found


def main() -> int:
    """1 if the number of ranks changes a weight."""
    one, two = train(1), train(2)
    print(f"used:   {one[0]:g} on one rank, {two[0]:g} on two")
    print(f"unused: {one[1]:g} on one rank, {two[1]:g} on two")
    return int(one != two)


if __name__ == "__main__":
    sys.exit(main())
