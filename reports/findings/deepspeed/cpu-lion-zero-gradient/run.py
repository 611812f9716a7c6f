"""DeepSpeedCPULion moves a parameter whose gradient and momentum are zero by the whole learning rate."""

from __future__ import annotations

import os
import sys
import warnings

import torch

GRADIENT = (1.0, 0.0, -1.0)
STEPS = 4


def main() -> int:
    """1 if an element without a gradient has moved."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.lion import DeepSpeedCPULion

    parameter = torch.nn.Parameter(torch.ones(len(GRADIENT)))
    optimizer = DeepSpeedCPULion([parameter], lr=0.125, betas=(0.5, 0.5))
    wrong = False
    for step in range(STEPS):
        parameter.grad = torch.tensor(GRADIENT)
        optimizer.step()
        moved = 0.125 * (step + 1)
        expected = [1 - moved, 1.0, 1 + moved]
        print(f"step {step}, gradient {list(GRADIENT)}: expected {expected}, got {parameter.tolist()}")
        wrong = wrong or parameter.tolist() != expected
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
