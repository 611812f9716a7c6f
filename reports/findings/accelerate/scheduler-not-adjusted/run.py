"""Accelerate: a learning-rate schedule is not adjusted for gradient accumulation, though adjust_scheduler is True.

An epoch of 16 batches, with a schedule that is made for 16 batches and falls to zero in them.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin

BATCHES = 16


def final_rate(plugin: GradientAccumulationPlugin) -> float:
    """The learning rate after an epoch, by the loop of Accelerate's documentation."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: 1 - count / BATCHES)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for _ in range(BATCHES):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return float(scheduler.get_last_lr()[0])


def main() -> int:
    """1 if the rate at the end depends on the number of micro-steps."""
    found = []
    for micro_steps in (1, 2, 4):
        plugin = GradientAccumulationPlugin(num_steps=micro_steps, adjust_scheduler=True)
        found.append(final_rate(plugin))
        read = GradientState().adjust_scheduler
        print(f"gradient_accumulation_steps={micro_steps}: expected a last rate of 0.0, got {found[-1]}", end="; ")
        print(f"adjust_scheduler is True, and GradientState reads {read}")
    return int(found[0] == 0.0 and any(found))


if __name__ == "__main__":
    sys.exit(main())
