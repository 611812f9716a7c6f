"""DeepSpeed stage 3: the backward raises if a module returns a dataclass and has a parameter of its own."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist


@dataclass
class Output:
    """What a block returns."""

    hidden: torch.Tensor


class Block(torch.nn.Module):
    """A parameter beside a layer."""

    def __init__(self, structured: bool) -> None:
        super().__init__()
        self.layer, self.weight = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.ones(4))
        self.structured = structured

    def forward(self, x: torch.Tensor) -> torch.Tensor | Output:
        hidden = self.layer(x) * self.weight
        return Output(hidden) if self.structured else hidden


class Model(torch.nn.Module):
    """A block between two layers."""

    def __init__(self, structured: bool) -> None:
        super().__init__()
        self.first, self.block, self.last = torch.nn.Linear(4, 4), Block(structured), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.block(self.first(x))
        loss: torch.Tensor = self.last(output.hidden if isinstance(output, Output) else output).sum()
        return loss


def outcome(stage: int, structured: bool) -> str:
    """The error of a step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(structured)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    try:
        engine.backward(engine(torch.ones(1, 4)))
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[0]}"
    return "no error"


def main() -> int:
    """1 if a backward raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for stage in (2, 3):
            for structured in (False, True):
                found[f"stage {stage}, {'dataclass' if structured else 'tensor'}"] = outcome(stage, structured)
        dist.destroy_process_group()
    for what, error in found.items():
        print(f"{what}: expected no error, got {error}")
    return int(any(error != "no error" for error in found.values()))


if __name__ == "__main__":
    sys.exit(main())
