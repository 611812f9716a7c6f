"""OSS: the step raises if the first parameter group has no parameter."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def step(groups: list[dict[str, Any]], model: torch.nn.Module) -> str:
    """Tell if the optimizer steps."""
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS

    optimizer = OSS(groups, torch.optim.SGD, lr=0.1)
    module = ShardedDataParallel(model, optimizer)
    module(torch.ones(2, 4)).square().sum().backward()
    try:
        optimizer.step()
    except IndexError as error:
        return f"IndexError: {error}"
    return "stepped"


def main() -> int:
    """1 if a step raises."""
    warnings.simplefilter("ignore")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for place in ("none", "last", "first"):
            model, empty = torch.nn.Linear(4, 1), {"params": list[Any]()}
            first, last = ([empty] if place == each else [] for each in ("first", "last"))
            found = step([*first, {"params": [*model.parameters()]}, *last], model)
            wrong = wrong or found != "stepped"
            print(f"the empty group is {place}: expected stepped, got {found}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
