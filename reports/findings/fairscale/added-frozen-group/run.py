"""OSS: add_param_group shares all parameters out anew, so that some are given to a rank whose optimizer has others.

Rank r has a gradient of r + 1 for every weight, so that the mean is 1.5, and a step takes each weight from 0 to -1.5.
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

RANKS = 2
#: Elements of the parameters of the first group.
SIZES = (5, 2, 2, 2)


class Model(torch.nn.Module):
    """The loss is the sum of all weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.ParameterList(torch.zeros(size) for size in SIZES)
        self.last = torch.nn.Parameter(torch.zeros(2))

    def forward(self, factor: float) -> torch.Tensor:
        weights = torch.cat([each.flatten() for each in (*self.first, self.last)])
        return weights.sum() * factor


def weights_after(frozen: bool) -> list[float]:
    """The weights after a step; the first group trains from the start, or was frozen when the optimizer was built."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    model = Model()
    model.first.requires_grad_(not frozen)
    optimizer = OSS(model.first.parameters(), torch.optim.SGD, lr=1)
    model.first.requires_grad_(True)
    optimizer.add_param_group({"params": [model.last]})
    module = ShardedDataParallel(model, optimizer, warn_on_trainable_params_changed=False)
    module(dist.get_rank() + 1.0).backward()
    optimizer.step()
    return [float(each.detach()[0]) for each in model.parameters()]


def on_rank(rank: int, folder: str) -> None:
    """Without a change of the parameters that train, and with one; the ranks tell one after another."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for frozen in (False, True):
        found = weights_after(frozen)
        for turn in range(RANKS):
            if turn == rank:
                print(f"frozen at first {frozen}, rank {rank}: expected all -1.5, got {found}", flush=True)
            dist.barrier()
        if set(found) != {-1.5}:
            Path(folder, "wrong").touch()
    dist.barrier()


def main() -> int:
    """1 if a weight is not updated with the mean gradient."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
