"""fairscale: a parameter that is frozen in the middle of training moves on one rank, and not on the others."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of all weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(4))
        self.second = torch.nn.Parameter(torch.zeros(4))

    def forward(self) -> torch.Tensor:
        return (self.first + self.second).sum()


def values() -> list[float]:
    """The first weight after a step in which it trains, and after one in which it does not require a gradient."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model, found = Model(), []
    optimizer = OSS(model.parameters(), optim=torch.optim.SGD, lr=1.0, momentum=0.5)
    wrapped = ShardedDataParallel(model, optimizer, broadcast_buffers=False, warn_on_trainable_params_changed=False)
    for trains in (True, False):
        model.first.requires_grad_(trains)
        wrapped.zero_grad(set_to_none=False)
        wrapped().backward()
        optimizer.step()
        found.append(float(model.first[0]))
    return found


def on_rank(rank: int, folder: str) -> None:
    """All ranks do the same."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    trained, frozen = values()
    print(f"rank {rank}: {trained} after a step, and {frozen} after a step in which it is frozen", flush=True)
    if frozen != trained:
        Path(folder, "wrong").touch()


def main() -> int:
    """1 if a frozen parameter moves."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
