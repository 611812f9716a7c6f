"""DeepSpeed's universal checkpoint at stages 1 and 2: a load fails on a rank whose partition of a group is empty.

The second parameter group has one element, as CLIP's logit scale with a learning rate of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

RANKS = 2


class Model(nn.Module):
    """A weight and a parameter of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(1))

    def forward(self) -> torch.Tensor:
        return (self.weight * self.scale).sum()


def make(stage: int, groups: int, universal: bool) -> Any:
    """An engine with one parameter group or two."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "lr": 0.1}},
        "zero_optimization": {"stage": stage},
        "checkpoint": {"load_universal": universal},
    }
    model = Model()
    each = [{"params": [model.weight]}, {"params": [model.scale], "lr": 0.01}]
    return deepspeed.initialize(model=model, model_parameters=each if groups == 2 else None, config=config)[0]


def convert(folder: str) -> None:
    """Write ``universal`` from ``saved``."""
    from deepspeed.checkpoint import ds_to_universal

    paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))


def on_rank(rank: int, folder: str, stage: int, groups: int) -> None:
    """Train a step, save, convert, and load."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    engine = make(stage, groups, universal=True)
    engine.backward(engine())
    engine.step()
    engine.save_checkpoint(folder, tag="saved")
    if rank == 0:
        convert(folder)
    dist.barrier()
    engine.load_checkpoint(folder, tag="universal")
    dist.destroy_process_group()


def end(stage: int, groups: int) -> str:
    """The end of a load of a converted state: "right", or the error of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(on_rank, (folder, stage, groups), nprocs=RANKS)
        except mp.ProcessRaisedException as error:
            return f"rank {error.error_index} raised {str(error).strip().splitlines()[-1]}"
    return "right"


def main() -> int:
    """1 if a load fails."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    for stage in (1, 2):
        for groups in (1, 2):
            found = end(stage, groups)
            print(f"stage {stage}, parameter groups {groups}: {found}", flush=True)
            wrong |= found != "right"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
