"""FSDP1: a parameter that is not contiguous gets the gradient of other elements.

The gradient of element (i, j) is 10 * i + j, so that SGD with lr 1 must leave its negative.
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

SLOPES = torch.tensor([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])


class Model(torch.nn.Module):
    """The loss is the sum of the weight's elements, each times its slope."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self) -> torch.Tensor:
        return (self.weight * SLOPES).sum()


def train(weight: torch.Tensor, strategy: ShardingStrategy, orig: bool) -> list[list[float]] | str:
    """The weight after one step, or the exception."""
    try:
        module = FullyShardedDataParallel(
            Model(weight), sharding_strategy=strategy, use_orig_params=orig, device_id=torch.device("cpu")
        )
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        module().backward()
        optimizer.step()
        with FullyShardedDataParallel.summon_full_params(module):
            return [[float(value) for value in row] for row in module.weight]
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """1 if a weight is wrong."""
    warnings.simplefilter("ignore")
    expected = [[-float(value) for value in row] for row in SLOPES]
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for strategy in (ShardingStrategy.NO_SHARD, ShardingStrategy.FULL_SHARD):
            for orig in (True, False):
                for name, weight in (("contiguous", torch.zeros(2, 3)), ("transposed", torch.zeros(3, 2).t())):
                    got = train(weight, strategy, orig)
                    right = got == expected
                    print(f"{strategy.name}, use_orig_params={orig}, {name}: {'right' if right else f'WRONG: {got}'}")
                    wrong |= not right
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
