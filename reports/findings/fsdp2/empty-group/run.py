"""FSDP2: an optimizer with a parameter group without parameters does not load its state.

It is torch.distributed.checkpoint's set_state_dict.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def build(empty: bool) -> tuple[Any, torch.optim.Optimizer]:
    """A module of one layer, and its optimizer; the first group may have no parameter."""
    module: Any = fully_shard(torch.nn.Linear(4, 4))
    groups: list[dict[str, Any]] = [*([{"params": []}] if empty else []), {"params": [*module.parameters()]}]
    return module, torch.optim.AdamW(groups)


def step(module: Any, optimizer: torch.optim.Optimizer) -> None:
    """One step of training."""
    module(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def resume(empty: bool, flat: bool) -> str:
    """Tell if another module goes on with the state of the first."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    module, optimizer = build(empty)
    step(module, optimizer)
    model_state, optimizer_state = get_state_dict(module, optimizer, options=options)
    module, optimizer = build(empty)
    both: dict[str, Any] = {"model_state_dict": model_state, "optim_state_dict": optimizer_state}
    try:
        set_state_dict(module, optimizer, **both, options=options)
        step(module, optimizer)
    except (IndexError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return "resumed"


def main() -> int:
    """1 if it does not resume."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for flat in (False, True):
            for empty in (False, True):
                found = resume(empty, flat)
                wrong = wrong or found != "resumed"
                print(f"an empty group {empty}, flatten_optimizer_state_dict={flat}: expected resumed, got {found}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
