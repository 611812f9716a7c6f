"""DeepSpeedCPUAdam computes 1 - beta and its powers in fp32: the second moment is off by 1.3e-5 of itself."""

from __future__ import annotations

import os
import sys
import warnings

import torch

BETAS = (0.9, 0.999)
STEPS = 5
#: Roundings of a step in fp32, each of 6e-8.
ALLOWED = 32 * 2.0**-24


def main() -> int:
    """Print the differences from torch's Adam, of each step; 1 if one is larger than the roundings of a step."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    ours, right = (torch.nn.Parameter(torch.zeros(8)) for _ in range(2))
    theirs = DeepSpeedCPUAdam([ours], lr=0.01, betas=BETAS)
    torchs = torch.optim.AdamW([right], lr=0.01, betas=BETAS, weight_decay=0)
    worst = 0.0
    for step in range(STEPS):
        for parameter, optimizer in ((ours, theirs), (right, torchs)):
            parameter.grad = torch.full((8,), 1.0 + step)
            optimizer.step()
        moment = float(theirs.state[ours]["exp_avg_sq"][0] / torchs.state[right]["exp_avg_sq"][0] - 1)
        moved = float(ours[0] / right[0] - 1)
        print(f"step {step}: exp_avg_sq off by {moment:+.1e} of itself, the parameter by {moved:+.1e}")
        worst = max(worst, abs(moment))
    return int(worst > STEPS * ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
