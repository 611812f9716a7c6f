"""DeepSpeed's universal checkpoint at stage 3: a checkpoint that was saved before the first update is not converted."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import nn


def make(stage: int) -> Any:
    """An engine that has not taken a step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.5}},
        "zero_optimization": {"stage": stage},
    }
    return deepspeed.initialize(model=nn.Linear(4, 4), config=config)[0]


def converted(stage: int, folder: str) -> str:
    """The result of the conversion of the engine's checkpoint."""
    from deepspeed.checkpoint import ds_to_universal

    make(stage).save_checkpoint(folder, tag="saved")
    paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))
    except KeyError as error:
        return f"KeyError: {error}"
    return "converted"


def main() -> int:
    """1 if a checkpoint is not converted."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for stage in (1, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                got = converted(stage, folder)
            print(f"stage {stage}: expected converted, got {got}")
            wrong |= got != "converted"
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
