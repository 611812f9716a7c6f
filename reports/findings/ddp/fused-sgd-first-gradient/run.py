"""SGD(fused=True) with momentum raises if a parameter's first gradient comes after an update of the others."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def two_steps(fused: bool, momentum: float) -> str:
    """Train two layers, of which the first is frozen in the first step; the outcome."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    module = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum, fused=fused)
    for frozen in (True, False):
        model[0].requires_grad_(not frozen)
        optimizer.zero_grad()
        module(torch.ones(1, 2)).sum().backward()
        try:
            optimizer.step()
        except TypeError as error:
            return f"TypeError: {error}"
    return "two updates"


def main() -> int:
    """1 if an update raises."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {
            (fused, momentum): two_steps(fused, momentum)
            for fused, momentum in ((False, 0.9), (True, 0.0), (True, 0.9))
        }
        dist.destroy_process_group()
    for (fused, momentum), value in found.items():
        print(f"fused={fused}, momentum={momentum}: expected two updates, got {value}")
    return int(any(value != "two updates" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
