"""DeepSpeed: the scheduler OneCycle sets beta2 of Adam to 0.99."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

#: Those of the client's optimizer.
BETAS = (0.9, 0.999)


def beta2(stage: int, cycle_momentum: bool) -> float:
    """The beta2 of the first update."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = torch.nn.Linear(4, 4)
    cycle = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 4, "cycle_momentum": cycle_momentum}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "scheduler": {"type": "OneCycle", "params": cycle},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=BETAS)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found = engine.optimizer.param_groups[0]["betas"][1]
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    return float(found)


def main() -> int:
    """1 if a beta2 is not the client's."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {(stage, cycles): beta2(stage, cycles) for cycles in (False, True) for stage in range(4)}
        dist.destroy_process_group()
    for (stage, cycles), value in found.items():
        print(f"stage {stage}, cycle_momentum {'on' if cycles else 'off'}: expected {BETAS[1]}, got {value}")
    return int(any(value != BETAS[1] for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
