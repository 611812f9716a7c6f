"""DDP: set_model_state_dict raises if the model registers a module twice."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.nn.parallel import DistributedDataParallel


def outcome(wraps: bool, twice: bool) -> str:
    """Whether a model takes its own state dict."""
    block = torch.nn.Linear(2, 2)
    model: torch.nn.Module = torch.nn.Sequential(block, block if twice else torch.nn.Linear(2, 2))
    if wraps:
        model = DistributedDataParallel(model)
    try:
        set_model_state_dict(model, get_model_state_dict(model))
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).split('Unexpected')[0].split(':', 1)[1].strip()}"
    return "loaded"


def main() -> int:
    """1 if a load raises."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {
            f"{'DDP' if wraps else 'no DDP'}, a module {'twice' if twice else 'once'}": outcome(wraps, twice)
            for wraps in (False, True)
            for twice in (False, True)
        }
        dist.destroy_process_group()
    for which, value in found.items():
        print(f"{which}: expected loaded, got {value}")
    return int(any(value != "loaded" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
