"""DeepSpeed stages 1 and 2: initialize raises if all parameters of a group are frozen."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def build(stage: int, frozen: bool) -> str:
    """Tell if initialize builds: two layers, each in a group of its own, of which the first may be frozen."""
    import deepspeed

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.AdamW([{"params": [*layer.parameters()]} for layer in model])
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    try:
        deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    except IndexError as error:
        return f"IndexError: {error}"
    return "built"


def main() -> int:
    """1 if the defect is there."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for frozen in (False, True):
            for stage in range(4):
                found = build(stage, frozen)
                wrong = wrong or found != "built"
                print(f"stage {stage}, a frozen group {frozen}: expected built, got {found}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
