"""FSDP1 with auto_wrap_policy: of a module that a model registers twice, only the first place is wrapped.

A list of three blocks has the first one again as the third. Each loss must be that of the same model without FSDP.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Model(nn.Module):
    """Two blocks, the first of which is called twice."""

    def __init__(self) -> None:
        super().__init__()
        block = Block()
        self.blocks = nn.ModuleList([block, Block(), block])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().sum()


def outcome(strategy: ShardingStrategy) -> str:
    """Right, or what goes wrong in a forward and backward."""
    torch.manual_seed(0)
    model, alone = Model(), Model()
    alone.load_state_dict(model.state_dict())
    module = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=strategy,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    x = torch.ones(2, 4)
    try:
        loss = module(x)
        loss.backward()
    except RuntimeError as error:
        return f"RuntimeError: {error}".splitlines()[0]
    return "right" if torch.allclose(loss, alone(x)) else f"a loss of {loss.item()}, expected {alone(x).item()}"


def run(rank: int, folder: str) -> None:
    """One rank: print what it has, and write down whether it is wrong."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD):
        got = outcome(strategy)
        if rank == 0:
            print(f"{strategy.name}: expected right, got {got}", flush=True)
        if got != "right":
            Path(folder, "wrong").touch()
    dist.barrier()


def main() -> int:
    """1 if a strategy goes wrong."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(folder,), nprocs=2)  # type: ignore[no-untyped-call]
        return int((Path(folder) / "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
