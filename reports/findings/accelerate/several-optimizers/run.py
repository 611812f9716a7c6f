"""Accelerate: with fp16 the second of two optimizers steps with wrong gradients.

The gradient of each step is 1, and each optimizer has a weight. The scaler is that of mixed_precision="fp16", which
Accelerate makes itself on an accelerator alone. Here the client sets it on the CPU.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn


def train(number: int, clips: bool, window: int, steps: int = 3) -> tuple[list[float], float]:
    """Two weights after some steps of one optimizer or of two, and the scale."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=window)
    accelerator.native_amp = True
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    given = [weights] if number == 1 else [[weight] for weight in weights]
    optimizers = [accelerator.prepare_optimizer(torch.optim.SGD(each, lr=1.0)) for each in given]
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        accelerator.backward(sum(weight.sum() for weight in weights))
        if clips:
            accelerator.clip_grad_norm_(weights, 100.0)  # far above the norm
        for optimizer in optimizers:
            optimizer.step()
    return [weight.item() for weight in weights], accelerator.scaler.get_scale()


def main() -> int:
    """1 if two optimizers train otherwise than one does."""
    wrong = False
    for clips, window in ((False, 1000), (True, 1000), (False, 2)):
        expected, got = (train(number, clips, window) for number in (1, 2))
        wrong |= got != expected
        print(f"clips: {clips}, scale grows after {window} steps: expected {expected}, got {got}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
