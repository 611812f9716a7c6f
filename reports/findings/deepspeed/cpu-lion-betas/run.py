"""DeepSpeedCPULion computes 1 - beta2 in fp32: with beta2 = 0.999 the momentum is off by 1.3e-5 of itself."""

from __future__ import annotations

import os
import sys
import warnings

import torch

#: Roundings of a step in fp32, each of 6e-8.
ALLOWED = 32 * 2.0**-24


def main() -> int:
    """1 if the momentum after a first step is further from (1 - beta2) times the gradient than roundings allow."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.lion import DeepSpeedCPULion

    worst = 0.0
    for beta2 in (0.5, 0.999):
        parameter = torch.nn.Parameter(torch.zeros(8))
        optimizer = DeepSpeedCPULion([parameter], lr=0.01, betas=(0.9, beta2))
        parameter.grad = torch.ones(8)
        optimizer.step()
        off = float(optimizer.state[parameter]["exp_avg"][0]) / (1 - beta2) - 1
        print(f"beta2={beta2}: the momentum is off by {off:+.1e} of itself")
        worst = max(worst, abs(off))
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
