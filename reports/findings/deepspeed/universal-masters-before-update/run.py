"""DeepSpeed's universal checkpoint at stages 1 and 2: before the first update it has no fp32 masters."""

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

#: Between two numbers of bf16.
MASTER = 1.0 + 2.0**-10


def make(stage: int, universal: bool) -> Any:
    """An engine in bf16, whose weight is 0."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "checkpoint": {"load_universal": universal},
    }
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return deepspeed.initialize(model=model, config=config)[0]


def convert(folder: str) -> None:
    """Write ``universal`` from ``saved``."""
    from deepspeed.checkpoint import ds_to_universal

    paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))


def master_after(stage: int, universal: bool) -> float:
    """The master in a new engine that loads the state of one whose master is MASTER, and which has made no update."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_set_full_fp32_param

    with tempfile.TemporaryDirectory() as folder:
        engine = make(stage, universal)
        with torch.no_grad():
            engine.module.weight.fill_(MASTER)
        safe_set_full_fp32_param(engine.module.weight, torch.full((1, 1), MASTER))
        engine.save_checkpoint(folder, tag="saved")
        if universal:
            convert(folder)
        engine = make(stage, universal)
        engine.load_checkpoint(folder, tag="universal" if universal else "saved")
        return float(safe_get_full_fp32_param(engine.module.weight))


def main() -> int:
    """1 if a master is another one."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for stage in (1, 2):
            for universal in (False, True):
                got = master_after(stage, universal)
                print(f"stage {stage}, {'universal' if universal else 'plain'}: expected {MASTER}, got {got}")
                wrong |= got != MASTER
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
