"""DeepSpeed's universal checkpoint at stage 3: all parameter groups get the hyperparameters of the first one."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def make(stage: int, universal: bool) -> Any:
    """An engine whose biases have a learning rate and a weight decay of their own."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = nn.Linear(4, 4)
    groups = [{"params": [model.weight], "lr": 1.0}, {"params": [model.bias], "lr": 0.125, "weight_decay": 0.0}]
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 1.0, "weight_decay": 0.5}},
        "zero_optimization": {"stage": stage},
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=model, model_parameters=groups, config=config)[0]


def saved_and_loaded(stage: int, folder: str) -> list[tuple[float, float]]:
    """The learning rate and the weight decay of each group of an engine that has loaded another one's checkpoint."""
    from deepspeed.checkpoint import ds_to_universal

    engine = make(stage, universal=False)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.save_checkpoint(folder, tag="saved")
    paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))
    Path(folder, "latest_universal").write_text("universal", encoding="utf-8")
    other = make(stage, universal=True)
    other.load_checkpoint(folder)
    return [(group["lr"], group["weight_decay"]) for group in other.optimizer.param_groups]


def main() -> int:
    """1 if a group has the hyperparameters of another one."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    expected, wrong = [(1.0, 0.5), (0.125, 0.0)], False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for stage in (1, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                got = saved_and_loaded(stage, folder)
            print(f"stage {stage}, (lr, weight_decay) of each group: expected {expected}, got {got}")
            wrong |= got != expected
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
