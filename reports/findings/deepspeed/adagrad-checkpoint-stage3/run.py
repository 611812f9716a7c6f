"""DeepSpeed, stage 3: a checkpoint of torch's Adagrad is saved, and does not load."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist


def engine_of(stage: int) -> Any:
    """An engine that trains a linear layer with Adagrad."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = torch.nn.Linear(4, 4)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def reload(stage: int, folder: str) -> str:
    """What a new engine does with the checkpoint of another after one step."""
    engine = engine_of(stage)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.save_checkpoint(folder, tag=f"stage{stage}")
    try:
        engine_of(stage).load_checkpoint(folder, tag=f"stage{stage}")
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"{type(error).__name__}: {error}"
    return "loaded"


def main() -> int:
    """Save and load at each stage, in one process; 1 if a checkpoint does not load."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {stage: reload(stage, folder) for stage in range(4)}
    for stage, got in found.items():
        print(f"stage {stage}: {got}")
    return int(any(got != "loaded" for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
