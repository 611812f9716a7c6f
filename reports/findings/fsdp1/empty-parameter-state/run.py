"""FSDP1 with use_orig_params: optim_state_dict raises if only some parameters of a flat parameter have states.

One with no element has none, and one that was frozen until now has none. Plain Adam trains the model in either case;
only reading the optimizer's state fails.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

RANKS = 2


class Model(nn.Module):
    """A linear layer, and a parameter with no element, whose sum is 0."""

    def __init__(self, empty: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.empty = nn.Parameter(torch.zeros(0)) if empty else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.layer(x).sum()
        return loss if self.empty is None else loss + self.empty.sum()


def read(empty: bool, thawed: bool) -> str:
    """The names of the read states, or the exception; ``thawed``: the bias was frozen in the step before."""
    model = FullyShardedDataParallel(Model(empty), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters())
    bias = model.module.layer.bias
    bias.requires_grad_(not thawed)
    model(torch.ones(2, 4)).backward()
    optimizer.step()
    bias.requires_grad_(True)
    try:
        return f"read {sorted(FullyShardedDataParallel.optim_state_dict(model, optimizer)['state'])}"
    except RuntimeError as error:
        return f"RuntimeError: {str(error)[:200]}"


def on_rank(rank: int, folder: str) -> None:
    """A plain model, one with an empty parameter, and one with a bias that was frozen."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for empty, thawed in ((False, False), (True, False), (False, True)):
        got = read(empty, thawed)
        if rank == 0:
            print(f"empty={empty}, thawed={thawed}: expected the states to be read, got {got}", flush=True)
            if not got.startswith("read"):
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if the state cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
