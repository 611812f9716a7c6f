"""FSDP1 with no_sync: the gradient of a block that the last micro-step does not use is never reduced."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy


class Model(nn.Module):
    """A layer, and a block that a micro-step may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        for weight in self.parameters():
            nn.init.ones_(weight)

    def forward(self, x: torch.Tensor, uses_block: bool) -> torch.Tensor:
        x = self.stem(x)
        return (self.block(x) if uses_block else x).sum()


def train(rank: int, strategy: ShardingStrategy, dtype: torch.dtype, last: bool) -> str:
    """The block's weights after two micro-steps, the first in no_sync, and a step; ``last``: the second uses it."""
    model = Model()

    def sharded(module: nn.Module) -> FullyShardedDataParallel:
        return FullyShardedDataParallel(
            module,
            sharding_strategy=strategy,
            use_orig_params=True,
            mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype),
            device_id=torch.device("cpu"),
        )

    model.block = sharded(model.block)  # type: ignore[assignment]
    module = sharded(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.125, momentum=0.5)
    x = torch.full((1, 2), float(rank + 1))
    try:
        with module.no_sync():
            module(x, True).backward()
        module(x, last).backward()
        optimizer.step()
    except Exception as error:  # noqa: BLE001 - the exception is a part of the finding
        return f"{type(error).__name__}: {error}".split(". ")[0]
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        (weight,) = model.block.parameters()
        return str(weight.flatten().tolist())


def run(rank: int, folder: str) -> None:
    """One rank: print what both ranks have, and write down whether one of them is wrong."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    wrong = False
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD):
        for dtype in (torch.float32, torch.bfloat16):
            for last, expected in ((True, "[0.25, 0.25, 0.25, 0.25]"), (False, "[0.625, 0.625, 0.625, 0.625]")):
                got: list[str] = ["", ""]
                dist.all_gather_object(got, train(rank, strategy, dtype, last))
                wrong |= got != [expected] * 2
                if rank == 0:
                    used = "both micro-steps" if last else "the first micro-step"
                    print(f"{strategy.name}, {dtype}, used by {used}: expected {expected} on both ranks, got {got}")
    dist.destroy_process_group()
    if wrong:
        (Path(folder) / "wrong").touch()


def main() -> int:
    """1 if a rank has other weights than expected."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, args=(folder,), nprocs=2)  # type: ignore[no-untyped-call]
        return int((Path(folder) / "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
