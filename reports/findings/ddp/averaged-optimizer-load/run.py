"""PostLocalSGDOptimizer: after load_state_dict its param_groups are not those of the optimizer that steps.

The gradient is 1, so that a step at a learning rate of 0.5 takes the weight from 0 to -0.5.
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.optim.lr_scheduler import LambdaLR


def weight_after(loads: bool) -> float:
    """The weight after a step at half of the rate, which a scheduler sets; after a load, or without one."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD([weight], lr=1), PeriodicModelAverager(period=1, warmup_steps=0))
    if loads:
        optimizer.load_state_dict(optimizer.state_dict())
    LambdaLR(optimizer, lambda _: 0.5)
    weight.grad = torch.ones(1)
    optimizer.step()
    return float(weight.detach())


def main() -> int:
    """1 if the scheduler's rate reaches the step only without a load."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {loads: weight_after(loads) for loads in (False, True)}
        dist.destroy_process_group()
    for loads, weight in found.items():
        print(f"{'after' if loads else 'without'} a load: expected -0.5, got {weight}")
    return int(found[True] != found[False] == -0.5)


if __name__ == "__main__":
    sys.exit(main())
