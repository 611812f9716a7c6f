"""PostLocalSGDOptimizer has no step hooks: to register one raises."""

from __future__ import annotations

import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer


def outcome(averages: bool) -> str:
    """How often a hook runs in a step; or the error."""
    model = torch.nn.Linear(2, 1)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters())
    if averages:
        optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=1, warmup_steps=0))
    calls: list[Any] = []
    try:
        optimizer.register_step_post_hook(lambda *given: calls.append(given))
    except AttributeError as error:
        return f"AttributeError: {error}"
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    return f"{len(calls)} call"


def main() -> int:
    """1 if the hook of Adam runs, and that of the optimizer that averages the parameters does not."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {averages: outcome(averages) for averages in (False, True)}
        dist.destroy_process_group()
    for averages, each in found.items():
        print(f"a step hook of {'PostLocalSGDOptimizer' if averages else 'Adam'}: expected 1 call, got {each}")
    return int(found[True] != found[False] == "1 call")


if __name__ == "__main__":
    sys.exit(main())
