"""DeepSpeed removes a parameter group without parameters from the client's optimizer, whose scheduler has it still."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def train(stage: int, empty: bool) -> str:
    """The rate of the layer's group after two steps, of which each halves it; or the error."""
    import deepspeed

    model = torch.nn.Linear(4, 1)
    groups: list[dict[str, Any]] = [*([{"params": []}] if empty else []), {"params": [*model.parameters()]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    factors = [*([lambda step: 1.0] if empty else []), lambda step: 0.5**step]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        config={
            "train_micro_batch_size_per_gpu": 2,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
        },
    )
    try:
        for _ in range(2):
            engine.backward(engine(torch.ones(2, 4)).square().sum())
            engine.step()
    except ValueError as error:
        return f"ValueError: {error}"
    return str(optimizer.param_groups[-1]["lr"])


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
        for empty in (False, True):
            for stage in range(4):
                found = train(stage, empty)
                wrong = wrong or found != "0.025"
                print(f"stage {stage}, {'with' if empty else 'without'} an empty group: expected 0.025, got {found}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
