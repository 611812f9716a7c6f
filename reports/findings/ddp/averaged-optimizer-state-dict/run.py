"""PostLocalSGDOptimizer: torch.distributed.checkpoint cannot make its states, and so cannot load them."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.optim import PostLocalSGDOptimizer


def outcome(averages: bool) -> str:
    """That of get_state_dict before the first step, as a load of a checkpoint has it; or its error."""
    model = torch.nn.Linear(2, 1)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters())
    if averages:
        optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=1, warmup_steps=0))
    try:
        get_state_dict(model, optimizer)
    except TypeError as error:
        return f"TypeError: {error}"
    return "the state"


def main() -> int:
    """1 if get_state_dict takes Adam, and raises for the optimizer that averages the parameters."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {averages: outcome(averages) for averages in (False, True)}
        dist.destroy_process_group()
    for averages, each in found.items():
        print(f"get_state_dict of {'PostLocalSGDOptimizer' if averages else 'Adam'}: expected the state, got {each}")
    return int(found[True] != found[False] == "the state")


if __name__ == "__main__":
    sys.exit(main())
