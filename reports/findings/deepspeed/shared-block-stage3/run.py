"""DeepSpeed stage 3: load_checkpoint with load_optimizer_states=False raises if a module is in the model twice."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The first block is in the list twice."""

    def __init__(self) -> None:
        super().__init__()
        block = torch.nn.Linear(8, 8)
        self.blocks = torch.nn.ModuleList([block, torch.nn.Linear(8, 8), block])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


def build() -> Any:
    """An engine of stage 3."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters()), config=config)
    return engine


def error_of(folder: str, states: bool) -> str:
    """The error of a load with or without the optimizer's states."""
    try:
        build().load_checkpoint(folder, load_optimizer_states=states)
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> int:
    """1 if the load raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        build().save_checkpoint(f"{folder}/saved")
        errors = {states: error_of(f"{folder}/saved", states) for states in (True, False)}
        dist.destroy_process_group()
    for states, error in errors.items():
        print(f"load_optimizer_states={states}: expected no error, got: {' '.join(error.split()) or 'none'}")
    return int(bool(errors[False]))


if __name__ == "__main__":
    sys.exit(main())
