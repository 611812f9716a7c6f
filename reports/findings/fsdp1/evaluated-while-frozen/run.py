"""FSDP1 with NO_SHARD: after an evaluation while a block is frozen, the block loses a gradient of no_sync().

The model calls the block twice, the first time with or without gradients. The loss is the sum of both weights, so that
each step's gradient is 1, and SGD with lr 1 must move each weight by -1 in each step, and a frozen one not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

RANKS = 2


class Sum(torch.nn.Module):
    """Adds the sum of its weight to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum()


class Model(torch.nn.Module):
    """A layer and a block, which it calls first for a target, with or without gradients."""

    def __init__(self, no_grad: bool) -> None:
        super().__init__()
        self.own, self.block, self.no_grad = Sum(), Sum(), no_grad

    def forward(self) -> torch.Tensor:
        x = self.own(torch.zeros(()))
        with torch.no_grad() if self.no_grad else nullcontext():
            target = self.block(x)
        loss: torch.Tensor = self.block(x + 0 * target)
        return loss


def train(no_grad: bool, evaluates: bool, micro_steps: int) -> dict[str, float]:
    """An element of each weight after three steps, of which the block is frozen in the second."""
    arguments = {"sharding_strategy": ShardingStrategy.NO_SHARD, "device_id": torch.device("cpu")}
    model = Model(no_grad)
    model.block = FullyShardedDataParallel(model.block, use_orig_params=True, **arguments)  # type: ignore[arg-type,assignment]
    module = FullyShardedDataParallel(model, use_orig_params=True, **arguments)  # type: ignore[arg-type]
    named = {name.replace("_fsdp_wrapped_module.", ""): p for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for step in range(3):
        named["block.weight"].requires_grad_(step != 1)
        if evaluates and step == 1:
            with torch.no_grad():
                module()
        module.zero_grad()
        for micro_step in range(micro_steps):
            with module.no_sync() if micro_step < micro_steps - 1 else nullcontext():
                (module() / micro_steps).backward()
        optimizer.step()
    return {name: p[0].item() for name, p in named.items()}


def on_rank(rank: int, folder: str) -> None:
    """Both models, with and without the evaluation, of one micro-step and of two; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for no_grad, evaluates, micro_steps in product((True, False), (False, True), (1, 2)):
        got = train(no_grad, evaluates, micro_steps)
        if rank == 0:
            print(f"{no_grad=}, {evaluates=}, {micro_steps=}: {got}", flush=True)
            if got != {"own.weight": -3.0, "block.weight": -2.0}:
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a weight is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
