"""FSDP1: two reentrant checkpoints in one FSDP instance raise: the first one's backward reshards the parameters."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    """Three layers; the last two are recomputed in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second = (nn.Linear(2, 2, bias=False) for _ in range(3))
        for weight in self.parameters():
            nn.init.ones_(weight)

    def forward(self, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
        x = self.stem(x)
        for layer in (self.first, self.second):
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return x.sum()


def train(rank: int, strategy: ShardingStrategy, dtype: torch.dtype, reentrant: bool) -> str:
    """The first layer's weight after a step with a learning rate of 1/64; or the exception."""
    module = FullyShardedDataParallel(
        Model(),
        sharding_strategy=strategy,
        use_orig_params=True,
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1 / 64)
    try:
        module(torch.full((1, 2), float(rank + 1)), reentrant).backward()
        optimizer.step()
    except Exception as error:  # noqa: BLE001 - the exception is a part of the finding
        return f"{type(error).__name__}: {error}".split(". ")[0]
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        return str(module.first.weight.flatten().tolist())


def run(rank: int, folder: str) -> None:
    """One rank: print what both ranks have, and write down whether one of them is wrong."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    wrong = False
    expected = "[0.90625, 0.90625, 0.90625, 0.90625]"
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD):
        for dtype in (torch.float32, torch.bfloat16):
            for reentrant in (False, True):
                got: list[str] = ["", ""]
                dist.all_gather_object(got, train(rank, strategy, dtype, reentrant))
                wrong |= got != [expected] * 2
                if rank == 0:
                    print(f"{strategy.name}, {dtype}, reentrant={reentrant}: expected {expected} on both, got {got}")
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
