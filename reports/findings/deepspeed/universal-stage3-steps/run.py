"""DeepSpeed's universal checkpoint at stage 3: the sub-groups share one step count, and each step adds to it often."""

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
    """An engine of two parameters; at stage 3 each is a sub-group."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.5}},
        "zero_optimization": {"stage": stage, "sub_group_size": 1},
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=nn.Linear(4, 4), config=config)[0]


def train(engine: Any) -> None:
    """One step."""
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()


def steps_after_two(stage: int, folder: str) -> list[int]:
    """The step counts of Adam's states after a step, a save, a load by another engine and a second step."""
    from deepspeed.checkpoint import ds_to_universal

    engine = make(stage, universal=False)
    train(engine)
    engine.save_checkpoint(folder, tag="saved")
    paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))
    Path(folder, "latest_universal").write_text("universal", encoding="utf-8")
    other = make(stage, universal=True)
    other.load_checkpoint(folder)
    train(other)
    return [int(state["step"]) for state in other.optimizer.optimizer.state.values()]


def main() -> int:
    """1 if a state has not taken two steps."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for stage in (1, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                got = steps_after_two(stage, folder)
            print(f"stage {stage}, steps of each state: expected {[2] * len(got)}, got {got}")
            wrong |= set(got) != {2}
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
