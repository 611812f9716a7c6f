"""DeepSpeed: deepspeed.checkpointing.checkpoint recomputes from an input that was edited in place since its forward."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint as torchs


def gradient(checkpoint: Callable[..., Any]) -> str:
    """The gradient of a relu's input, which is scaled by -1 after the relu; or an error."""
    x = torch.ones(2, requires_grad=True)
    hidden = x * 1.0
    output = checkpoint(torch.relu, hidden)
    hidden.mul_(-1.0)  # the relu keeps its output, and not its input
    try:
        output.sum().backward()
    except RuntimeError as error:
        return f"RuntimeError: {str(error)[:88]} ..."
    return str(x.grad.tolist() if x.grad is not None else None)


def main() -> int:
    """1 if a wrong gradient comes without an error."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    ways: dict[str, Callable[..., Any]] = {
        "no recomputation": lambda function, x: function(x),
        "torch.utils.checkpoint, reentrant": lambda function, x: torchs.checkpoint(function, x, use_reentrant=True),
        "deepspeed.checkpointing.checkpoint": deepspeed.checkpointing.checkpoint,
        "deepspeed.checkpointing.non_reentrant_checkpoint": deepspeed.checkpointing.non_reentrant_checkpoint,
    }
    found = {name: gradient(checkpoint) for name, checkpoint in ways.items()}
    for name, got in found.items():
        print(f"{name}: {got}")
    right = found["no recomputation"]
    return int(any(got != right and "Error" not in got for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
