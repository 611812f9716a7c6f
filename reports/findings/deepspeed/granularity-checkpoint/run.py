"""DeepSpeed, stage 3: with stage3_module_granularity_threshold a checkpoint is saved, and does not load."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class Block(torch.nn.Module):
    """34 parameters in two layers: 14 for each of its three modules, as DeepSpeed counts."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 2), torch.nn.Linear(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))


def engine_of(threshold: int) -> Any:
    """An engine with a large layer and a block, which a threshold of 14 makes a leaf."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Block())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "stage3_module_granularity_threshold": threshold,
        },
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def reload(threshold: int, folder: str) -> str:
    """What a new engine does with the checkpoint of another after one step."""
    engine, tag = engine_of(threshold), f"threshold{threshold}"
    engine.backward(engine(torch.ones(1, 8)).sum())
    engine.step()
    engine.save_checkpoint(folder, tag=tag)
    try:
        engine_of(threshold).load_checkpoint(folder, tag=tag)
    except RuntimeError as error:
        return str(error)
    return "loaded"


def main() -> int:
    """Save and load with and without a leaf, in one process; 1 if a checkpoint does not load."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {threshold: reload(threshold, folder) for threshold in (0, 14)}
        dist.destroy_process_group()
    for threshold, got in found.items():
        print(f"stage3_module_granularity_threshold {threshold}: {got}")
    return int(any(got != "loaded" for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
