"""FSDP1: a parameter that is used before a reentrant checkpoint in its FSDP instance is gone in the backward."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    """Scales the output of a layer by a parameter; the layer after it is recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        for weight in self.parameters():
            nn.init.ones_(weight)

    def forward(self, x: torch.Tensor, reentrant: bool) -> torch.Tensor:
        hidden = self.stem(x) * self.scale
        return checkpoint(self.head, hidden, use_reentrant=reentrant).sum()


def run(rank: int, folder: str, strategy: ShardingStrategy, dtype: torch.dtype, reentrant: bool) -> None:
    """One rank: write the weight of the first layer after a step with a learning rate of 1/64."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    module = FullyShardedDataParallel(
        Model(),
        sharding_strategy=strategy,
        use_orig_params=True,
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1 / 64)
    module(torch.full((1, 2), float(rank + 1)), reentrant).backward()
    optimizer.step()
    with FullyShardedDataParallel.summon_full_params(module, writeback=False):
        (Path(folder) / f"rank-{rank}").write_text(str(module.stem.weight.flatten().tolist()))
    dist.destroy_process_group()


def outcome(strategy: ShardingStrategy, dtype: torch.dtype, reentrant: bool) -> str:
    """What both ranks have, or how one of them has ended."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.multiprocessing.spawn(run, args=(folder, strategy, dtype, reentrant), nprocs=2)  # type: ignore[no-untyped-call]
        except ProcessExitedException as error:
            return f"a rank died: {error.signal_name or error.exit_code}"
        except ProcessRaisedException as error:
            return f"a rank raised: {str(error).strip().splitlines()[-1]}"
        return " and ".join((Path(folder) / f"rank-{rank}").read_text() for rank in range(2))


def main() -> int:
    """1 if a rank has no such weights."""
    weight = "[0.953125, 0.953125, 0.953125, 0.953125]"
    expected, wrong = f"{weight} and {weight}", False
    for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD):
        for dtype in (torch.float32, torch.bfloat16):
            for reentrant in (False, True):
                got = outcome(strategy, dtype, reentrant)
                wrong |= got != expected
                print(f"{strategy.name}, {dtype}, reentrant={reentrant}: expected {expected}, got {got}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
