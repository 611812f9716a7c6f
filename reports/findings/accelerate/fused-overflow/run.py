"""Accelerate: a step that a fused optimizer leaves out counts as one that was taken, and the schedule goes on.

The gradient of each step is 1, but that of the first one is infinite. The scaler is that of mixed_precision="fp16",
which Accelerate makes itself on an accelerator alone.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler


def train(fused: bool) -> tuple[bool, float, float]:
    """Whether Accelerate says that the step was skipped, the weight after it, and the rate of the next step."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: 0.5**steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    accelerated = AcceleratedOptimizer(optimizer, scaler=scaler)
    scheduler = AcceleratedScheduler(schedule, accelerated)
    scaler.scale(weight.sum() * float("inf")).backward()
    accelerated.step()
    scheduler.step()
    return accelerated.step_was_skipped, weight.item(), optimizer.param_groups[0]["lr"]


def main() -> int:
    """1 if the two forms of the optimizer differ."""
    Accelerator(cpu=True)  # the wrappers need its state
    found = {fused: train(fused) for fused in (False, True)}
    for fused, (skipped, weight, rate) in found.items():
        print(f"fused={fused}: expected (True, 0.0, 1.0), got {(skipped, weight, rate)}")
    return int(found[False] == (True, 0.0, 1.0) != found[True])


if __name__ == "__main__":
    sys.exit(main())
