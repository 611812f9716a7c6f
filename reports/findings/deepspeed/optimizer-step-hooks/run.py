"""DeepSpeed, stages 1 to 3: step hooks of a client's optimizer run once for each group and sub-group of parameters."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STEPS = 3


class Decay:
    """A hook that halves all rates after each step, by its own count of them."""

    def __init__(self) -> None:
        self.steps, self.groups = 0, list[int]()

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.steps += 1
        self.groups.append(len(optimizer.param_groups))
        for group in optimizer.param_groups:
            group["lr"] = 0.5**self.steps


def trained(stage: int) -> str:
    """How often the hook ran, with how many groups, and the rates after the last step."""
    import deepspeed

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1].parameters()}], lr=1.0)
    decay = Decay()
    optimizer.register_step_post_hook(decay)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    decay.steps, decay.groups = 0, []
    for _ in range(STEPS):
        engine.backward(engine(torch.ones(1, 4)).sum())
        engine.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    return f"{decay.steps} calls with {decay.groups} groups, rates {rates}"


def main() -> int:
    """1 if a hook does not run once for each step."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {f"stage {stage}": trained(stage) for stage in range(4)}
        dist.destroy_process_group()
    for name, got in found.items():
        print(f"{name}, {STEPS} steps: {got}")
    return int(len(set(found.values())) > 1)


if __name__ == "__main__":
    sys.exit(main())
