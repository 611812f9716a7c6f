"""DeepSpeed's universal checkpoint at stages 1 and 2: a load keeps moments if there were none at the save."""

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
from torch import nn


def make(stage: int, universal: bool) -> Any:
    """An engine whose loss is the sum of its weights or their negative."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "lr": 1.0}},
        "zero_optimization": {"stage": stage},
        "checkpoint": {"load_universal": universal},
    }
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return deepspeed.initialize(model=model, config=config)[0]


def step(engine: Any, sign: float) -> None:
    engine.backward(engine(torch.full((1, 1), sign)).sum())
    engine.step()


def convert(folder: str) -> None:
    """Write ``universal`` from ``saved``."""
    from deepspeed.checkpoint import ds_to_universal

    paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))


def weight_after(stage: int, universal: bool) -> float:
    """The weight after a step from a state that was saved before the first step and loaded after it."""
    with tempfile.TemporaryDirectory() as folder:
        engine = make(stage, universal)
        engine.save_checkpoint(folder, tag="saved")
        if universal:
            convert(folder)
        step(engine, 1.0)
        engine.load_checkpoint(folder, tag="universal" if universal else "saved")
        step(engine, -1.0)
        return round(float(engine.module.weight), 3)


def main() -> int:
    """1 if the weight has moved by moments that were not saved."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for stage in (1, 2):
            for universal in (False, True):
                got = weight_after(stage, universal)
                print(f"stage {stage}, {'universal' if universal else 'plain'}: expected 1.0, got {got}")
                wrong |= got != 1.0
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
