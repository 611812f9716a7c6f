"""fairscale ShardedDataParallel: if the model ends with a checkpointed layer, gradients are not reduced."""

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

RANKS = 2


class Model(torch.nn.Module):
    """Both layers are the identity before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (torch.nn.Linear(8, 8) for _ in range(2))
        for layer in (self.first, self.last):
            torch.nn.init.eye_(layer.weight)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.last, self.first(x), use_reentrant=True).sum()


def on_rank(rank: int, folder: str) -> None:
    """The first element of each parameter after one step; the ranks have the inputs 1 and 3."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = Model()
    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=1.0)
    wrapped = ShardedDataParallel(model, optimizer)
    wrapped(torch.full((1, 8), 2.0 * rank + 1.0)).backward()
    optimizer.step()
    if rank == 0:
        found = {name: float(p.flatten()[0]) for name, p in model.named_parameters()}
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if an element is not the initial one less the mean gradient: 2, the mean input, of weights, and 1 of biases."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    for name, each in found.items():
        print(f"{name}: expected -1, got {each:g}")
    return int(any(abs(each + 1) > 1e-5 for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
