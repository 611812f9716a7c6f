"""fairscale ShardedDataParallel: a block that is called twice under reentrant checkpointing has wrong gradients."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.checkpoint import checkpoint

RANKS, RUNS = 3, 5


class Model(torch.nn.Module):
    """Both calls of the block add the input to each row of the weight's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.Linear(8, 8, bias=False)
        torch.nn.init.eye_(self.block.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = checkpoint(self.block, x, use_reentrant=True)
        return checkpoint(self.block, once, use_reentrant=True).sum()


def on_rank(rank: int, folder: str) -> None:
    """The first weight after one step of each run; the ranks have the inputs 1, 2 and 3."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    found = []
    for _ in range(RUNS):
        model = Model()
        optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=1.0)
        wrapped = ShardedDataParallel(model, optimizer)
        wrapped(torch.full((1, 8), rank + 1.0, requires_grad=True)).backward()
        optimizer.step()
        found.append(float(model.block.weight[0, 0]))
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if a weight is not the initial one less the mean over the ranks of twice the input."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    expected = 1 - 2 * (1 + 2 + 3) / RANKS
    print(f"expected {expected:g} in each of {RUNS} runs, got {', '.join(f'{each:g}' for each in found)}")
    return int(any(abs(each - expected) > 1e-5 for each in found))


if __name__ == "__main__":
    sys.exit(main())
