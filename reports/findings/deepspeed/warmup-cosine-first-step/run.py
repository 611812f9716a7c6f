"""DeepSpeed: with the scheduler WarmupCosineLR the first step has a rate of zero, whatever warmup_min_ratio is."""

from __future__ import annotations

import logging
import sys
import warnings

import torch

warnings.simplefilter("ignore")
from deepspeed.runtime.lr_schedules import WarmupCosineLR, WarmupLR, logger  # noqa: E402

RATE, STEPS = 0.5, 3


def rates(kind: str, ratio: float) -> list[float]:
    """The rate of each step, with a warm-up that begins at ``ratio`` of the rate and takes all steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    if kind == "WarmupLR":
        scheduler = WarmupLR(optimizer, ratio * RATE, RATE, warmup_num_steps=STEPS, warmup_type="linear")
    else:
        scheduler = WarmupCosineLR(optimizer, 10, warmup_min_ratio=ratio, warmup_num_steps=STEPS, warmup_type="linear")
    found = []
    for _ in range(STEPS):
        found.append(round(optimizer.param_groups[0]["lr"], 4))
        optimizer.step()
        scheduler.step()
    return found


def main() -> int:
    """1 if a first step has another rate than the warm-up's first one."""
    logger.setLevel(logging.ERROR)
    wrong = False
    for kind in ("WarmupLR", "WarmupCosineLR"):
        for ratio in (0.0, 0.5, 1.0):
            found = rates(kind, ratio)
            print(f"{kind} from {ratio} of {RATE}: expected {ratio * RATE} in the first step, got {found}")
            wrong = wrong or found[0] != ratio * RATE
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
