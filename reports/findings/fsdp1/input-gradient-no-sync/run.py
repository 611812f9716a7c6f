"""FSDP1: after a backward in no_sync, torch.autograd.grad by the input of a sharded module raises."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy


def train(strategy: ShardingStrategy, synchronized: bool) -> str:
    """What comes of the gradient by the input, after a backward that is synchronized or in no_sync."""
    torch.manual_seed(0)
    module = FullyShardedDataParallel(
        torch.nn.Linear(4, 4), sharding_strategy=strategy, use_orig_params=True, device_id=torch.device("cpu")
    )
    if synchronized:
        module(torch.ones(1, 4)).sum().backward()
    else:
        with module.no_sync():
            module(torch.ones(1, 4)).sum().backward()
    x = torch.ones(1, 4, requires_grad=True)
    try:
        torch.autograd.grad(module(x).sum(), x)
    except Exception as error:  # noqa: BLE001 - the exception is a part of the finding
        return f"{type(error).__name__}: {error}"
    return "a gradient"


def run(rank: int, folder: str) -> None:
    """One rank: print what comes of each, and write down whether a gradient is missing."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for strategy in (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD):
        for synchronized in (True, False):
            got = train(strategy, synchronized)
            if got != "a gradient":
                (Path(folder) / "wrong").touch()
            if rank == 0:
                before = "a synchronized backward" if synchronized else "a backward in no_sync"
                print(f"{strategy.name}, after {before}: expected a gradient, got {got}")
    dist.destroy_process_group()


def main() -> int:
    """1 if there is no gradient."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(folder,), nprocs=2)  # type: ignore[no-untyped-call]
        return int((Path(folder) / "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
