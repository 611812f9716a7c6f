"""DeepSpeed: if the module returns a dataclass, loss.backward() ends in KeyError, and timers in AssertionError."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class Output:
    """What the model returns."""

    loss: torch.Tensor


class Model(torch.nn.Module):
    """The loss is the sum of the weight, in a dataclass or a dict."""

    def __init__(self, output: type) -> None:
        super().__init__()
        self.weight, self.output = torch.nn.Parameter(torch.zeros(8)), output

    def forward(self) -> Any:
        return self.output(loss=self.weight.sum())


def end(stage: int, output: type, call: str, timers: bool) -> str:
    """The end of a step: "right", or the error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "lr": 0.1}},
        "zero_optimization": {"stage": stage},
        "wall_clock_breakdown": timers,
    }
    engine, *_ = deepspeed.initialize(model=Model(output), config=config)
    try:
        found = engine()
        loss = found["loss"] if isinstance(found, dict) else found.loss
        if call == "loss.backward()":
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
    except (AssertionError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "right"


def main() -> int:
    """1 if a step fails."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for output in (dict, Output):
            for stage in (1, 2, 3):
                for call, timers in (("loss.backward()", False), ("engine.backward(loss)", True)):
                    found = end(stage, output, call, timers)
                    print(f"{output.__name__}, stage {stage}, {call}, wall_clock_breakdown={timers}: {found}")
                    wrong |= found != "right"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
