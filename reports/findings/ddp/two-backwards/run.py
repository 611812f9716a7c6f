"""DDP and FSDP1: the gradients of a second backward without a forward before it are not reduced.

The loss of rank r is r + 1 times the weight, so that the mean of the ranks' gradients is 1.5. Each of two backwards
has half of the loss.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of the weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight.mean() * factor


def without_shards(model: Model) -> torch.nn.Module:
    """FSDP1 as data parallelism."""
    return FullyShardedDataParallel(
        model, sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True, device_id=torch.device("cpu")
    )


WRAPPERS: dict[str, Callable[[Model], torch.nn.Module]] = {
    "fully_shard": fully_shard,
    "DDP": DistributedDataParallel,
    "DDP, find_unused_parameters": lambda model: DistributedDataParallel(model, find_unused_parameters=True),
    "DDP, static_graph": lambda model: DistributedDataParallel(model, static_graph=True),
    "FSDP1, NO_SHARD": without_shards,
}


def backwards(module: torch.nn.Module, order: str, factor: float) -> None:
    """Two backwards of half of the loss each."""
    if order == "one after the other":
        for _ in range(2):
            (module(factor) / 2).backward()
    elif order == "both forwards first":
        losses = [module(factor) / 2, module(factor) / 2]
        for loss in losses:
            loss.backward()
    else:
        loss = module(factor) / 2
        loss.backward(retain_graph=True)
        loss.backward()


def gradient(module: torch.nn.Module) -> float:
    """The gradient of the sum of the weights."""
    [parameter] = module.parameters()
    grad = parameter.grad
    whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
    assert whole is not None
    return float(whole.sum())


def on_rank(rank: int, folder: str) -> None:
    """The gradient with each wrapper and each order."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for name, wrap in WRAPPERS.items():
        for order in ("one after the other", "both forwards first", "one forward"):
            module = wrap(Model())
            backwards(module, order, rank + 1.0)
            got: list[float] = [0.0] * RANKS
            dist.all_gather_object(got, gradient(module))
            if rank == 0:
                print(f"{name}, {order}: expected 1.5 on both ranks, got {got}")
                if got != [1.5, 1.5]:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
