"""Accelerate: after load_state with another number of micro-steps, steps end after the wrong micro-step.

The gradient of a micro-step is 1, so that a step at a learning rate of 1 takes the weight from 0 to -1.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState


class Weight(torch.nn.Module):
    """One weight, which is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def make(micro_steps: int) -> tuple[Accelerator, Any, Any]:
    """An accelerator that accumulates so many micro-steps, as a new process has it, a model and its optimizer."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_steps)
    model = Weight()
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1))


def train(accelerator: Accelerator, model: Any, optimizer: Any, micro_steps: int) -> float:
    """The weight after so many micro-steps, by the loop of Accelerate's documentation."""
    for _ in range(micro_steps):
        with accelerator.accumulate(model):
            accelerator.backward(model())
            optimizer.step()
            optimizer.zero_grad()
    return float(accelerator.unwrap_model(model).weight.detach())


def weight_after(steps: int) -> float:
    """The weight after a step of two micro-steps, before which a state was loaded, which is that of after so many steps
    of one micro-step."""
    with tempfile.TemporaryDirectory() as folder:
        accelerator, model, optimizer = make(1)
        before = train(accelerator, model, optimizer, steps) if steps else 0.0
        accelerator.save_state(folder)
        accelerator, model, optimizer = make(2)
        accelerator.load_state(folder)
    return train(accelerator, model, optimizer, 2) - before


def main() -> int:
    """1 if the step depends on the number of micro-steps before the save."""
    found = {steps: weight_after(steps) for steps in (2, 1)}
    for steps, weight in found.items():
        print(f"saved after {steps} steps of one micro-step: expected a step of -1.0, got {weight}")
    return int(found[1] != found[2] == -1.0)


if __name__ == "__main__":
    sys.exit(main())
