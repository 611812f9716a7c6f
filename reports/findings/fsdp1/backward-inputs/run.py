"""FSDP1: backward(inputs=parameters) computes no gradient of the parameters that it names.

The loss is the sum of a weight, so that its gradient is 1, and SGD with lr 1 must move the weight by -1, as with
DistributedDataParallel.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return (factor * self.weight).sum()


#: The strategy, use_orig_params, and the dtype of mixed precision.
ENGINES = (
    None,
    ("FULL_SHARD", True, None),
    ("SHARD_GRAD_OP", True, None),
    ("NO_SHARD", True, None),
    ("FULL_SHARD", False, None),
    ("FULL_SHARD", False, torch.bfloat16),
)


def train(engine: tuple[str, bool, torch.dtype | None] | None) -> float:
    """The first element of the optimizer's parameter after one step; on rank 0 it is the first one of the weight."""
    model = Model()
    module: torch.nn.Module
    if engine is None:
        module = DistributedDataParallel(model)
    else:
        strategy, named, dtype = engine
        module = FullyShardedDataParallel(
            model,
            sharding_strategy=ShardingStrategy[strategy],
            use_orig_params=named,
            mixed_precision=None if dtype is None else MixedPrecision(param_dtype=dtype),
            device_id=torch.device("cpu"),
        )
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    module(torch.ones(8)).backward(inputs=parameters)
    optimizer.step()
    return parameters[0].detach().flatten()[0].item()


def on_rank(rank: int, folder: str) -> None:
    """In each kind of engine; rank 0 tells."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for engine in ENGINES:
        got = train(engine)
        if rank == 0:
            name = "DDP" if engine is None else f"{engine[0]}, use_orig_params={engine[1]}, {engine[2]}"
            print(f"{name}: expected the weight -1.0, got {got}", flush=True)
            if got != -1.0:
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
