"""DeepSpeed's OneCycle: beta2 of every Adam group becomes 0.99, and the first update has the least momentum.

The momentum runs against the rate, so an update at the least rate has the largest momentum.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist

MOMENTA = {"cycle_min_mom": 0.85, "cycle_max_mom": 0.95}
RATES = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 4}


def betas(momentum: bool) -> list[tuple[float, float]]:
    """The betas of the first updates, with or without a cycle of the momentum."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = torch.nn.Linear(4, 4)
    cycle = {**RATES, **MOMENTA, "cycle_momentum": momentum}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2},
        "scheduler": {"type": "OneCycle", "params": cycle},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found = []
    for _ in range(3):
        first, second = engine.optimizer.param_groups[0]["betas"]
        found.append((round(first, 4), second))
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()
    return found


def main() -> int:
    """1 if a beta is not that of the configuration."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    expected = {False: [(0.9, 0.999)] * 3, True: [(0.95, 0.999), (0.925, 0.999), (0.9, 0.999)]}
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for momentum, right in expected.items():
            got = betas(momentum)
            print(f"cycle_momentum {momentum}: expected {right}, got {got}", flush=True)
            wrong |= got != right
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
