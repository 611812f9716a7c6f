"""FSDP1: the backward of a gradient penalty, whose gradients have a graph, raises if parameters are sharded."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def penalty(model: torch.nn.Module) -> torch.Tensor:
    """The square of the gradient of the output by the input, as in WGAN-GP."""
    x = torch.ones(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return gradient.square().sum()


def build() -> Any:
    """Two layers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def run(rank: int, folder: str) -> None:
    """Exit with 1 if the weights after a step are other ones than those without FSDP1, or the backward raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    plain = build()
    penalty(plain).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    expected = f"{float(plain[0].weight.detach().norm()):.4f}"
    wrong = False
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        model: Any = FullyShardedDataParallel(
            build(),
            sharding_strategy=strategy,
            auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
            device_id=torch.device("cpu"),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        try:
            penalty(model).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with FullyShardedDataParallel.summon_full_params(model):
                got = f"{float(model.module[0].weight.norm()):.4f}"
        except RuntimeError as error:
            got = f"RuntimeError: {str(error).splitlines()[0]}"
        wrong = wrong or got != expected
        if rank == 0:
            print(f"{strategy.name}: expected a weight of {expected} after a step, got {got}")
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.exit(int(wrong))


def main() -> int:
    """1 if a step is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.get_context("spawn").Process(target=run, args=(rank, folder)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    return max(abs(each.exitcode or 0) for each in ranks)


if __name__ == "__main__":
    sys.exit(main())
