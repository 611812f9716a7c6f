"""ZeroRedundancyOptimizer: with parameters_as_bucket_view a fused optimizer updates wrong elements of a parameter that
is not contiguous."""

from __future__ import annotations

import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class Transposed(torch.nn.Module):
    """A product with a matrix that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).view(3, 2).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2] to [3]."""
        return x @ self.weight


def updated(views: bool, **form: Any) -> list[list[float]]:
    """The weight after a step of SGD."""
    module = DistributedDataParallel(Transposed(), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        module.parameters(), torch.optim.SGD, parameters_as_bucket_view=views, lr=1.0, **form
    )
    (module(torch.tensor([1.0, 10.0])) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    optimizer.step()
    found: list[list[float]] = module.module.weight.tolist()
    return found


def main() -> int:
    """1 if a setting gives another weight."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {
            (views, fused): updated(views, fused=fused) for views, fused in ((False, True), (True, False), (True, True))
        }
        dist.destroy_process_group()
    expected = [[-1.0, 0.0, 1.0], [-9.0, -17.0, -25.0]]
    for (views, fused), value in found.items():
        print(f"parameters_as_bucket_view={views}, fused={fused}: expected {expected}, got {value}")
    return int(any(value != expected for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
