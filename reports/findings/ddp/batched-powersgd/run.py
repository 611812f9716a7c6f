"""DDP: batched_powerSGD_hook raises in its first compressed step."""

from __future__ import annotations

import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks
from torch.nn.parallel import DistributedDataParallel

STEPS = 4


def outcome(hook: Callable[..., Any]) -> str:
    """The number of backwards, of which the last two compress; or the error of one."""
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    model.register_comm_hook(hooks.PowerSGDState(None, start_powerSGD_iter=2), hook)
    for step in range(STEPS):
        try:
            model(torch.ones(1, 16)).sum().backward()
        except AssertionError as error:
            place = traceback.extract_tb(error.__traceback__)[-1].name
            return f"{type(error).__name__} of {place} in backward {step + 1}"
    return f"{STEPS} backwards"


def main() -> int:
    """1 if a hook raises."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {hook.__name__: outcome(hook) for hook in (hooks.powerSGD_hook, hooks.batched_powerSGD_hook)}
        dist.destroy_process_group()
    for name, got in found.items():
        print(f"{name}: expected {STEPS} backwards, got {got}")
    return int(any(got != f"{STEPS} backwards" for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
