"""FSDP1: a forward that raises leaves parameters out of the module: zero_grad() misses them, mixed precision loses a
step's gradient of a block, and with NO_SHARD they never come back.

The loss is the sum of both weights, so that each step's gradient is 1, and SGD with lr 1 must move each weight by -1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

RANKS = 2
#: The moments of a forward that raises, whose batch the client leaves out. The last is that of a forward that ends, and
#: that no backward follows, in a step in which the block is frozen.
MOMENTS = "never", "before the first step", "before zero_grad() of each step", "never, frozen block"
STRATEGIES = ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD


class Sum(torch.nn.Module):
    """Adds the sum of its weight to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum()


class Model(torch.nn.Module):
    """A layer and a block, both of which add their sums; it may raise after the block."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.block = Sum(), Sum()

    def forward(self, *, fails: bool) -> torch.Tensor:
        loss: torch.Tensor = self.block(self.own(torch.zeros(())))
        if fails:
            raise ValueError
        return loss


def train(strategy: ShardingStrategy, dtype: torch.dtype | None, raises: str) -> dict[str, float]:
    """An element of each weight after three steps; a forward raises at one of the moments."""
    precision = MixedPrecision(param_dtype=dtype) if dtype else None
    wrapper = FullyShardedDataParallel
    arguments = {"sharding_strategy": strategy, "mixed_precision": precision, "device_id": torch.device("cpu")}
    model = Model()
    model.block = wrapper(model.block, use_orig_params=True, **arguments)  # type: ignore[arg-type,assignment]
    module = wrapper(model, use_orig_params=True, **arguments)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    of_block = [p for name, p in module.named_parameters() if name.split(".")[1] == "block"]
    for step in range(3):
        for parameter in of_block:
            parameter.requires_grad_(raises != MOMENTS[3] or step != 1)
        if raises == MOMENTS[3] and step == 1:
            module(fails=False)
        if raises == MOMENTS[2] or (raises == MOMENTS[1] and step == 0):
            with suppress(ValueError):
                module(fails=True)
        module.zero_grad()
        module(fails=False).backward()
        optimizer.step()
    with wrapper.summon_full_params(module, writeback=False):
        return {name.replace("_fsdp_wrapped_module.", ""): p[0].item() for name, p in module.named_parameters()}


def on_rank(rank: int, folder: str) -> None:
    """Each strategy, dtype and moment; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for strategy in STRATEGIES:
        for dtype in (None, torch.bfloat16):
            for raises in MOMENTS:
                got = train(strategy, dtype, raises)
                if rank == 0:
                    print(f"{strategy.name}, {dtype or torch.float32}, raises {raises}: {got}", flush=True)
                    if got != {"own.weight": -3.0, "block.weight": -2.0 if raises == MOMENTS[3] else -3.0}:
                        Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a weight is wrong or missing."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
