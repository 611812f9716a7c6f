"""DeepSpeed's universal checkpoint: frozen parameters and buffers are not loaded, and nothing says so."""

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


class Model(nn.Module):
    """A layer that trains, a frozen one, and a buffer."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.trained, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(4))
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.detach().fill_(value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.trained(self.frozen(x) + self.mean).sum()


def make(value: float, stage: int, universal: bool) -> Any:
    """An engine over a model all of whose elements have one value."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "lr": 0.0}},
        "zero_optimization": {"stage": stage},
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=Model(value), config=config)[0]


def saved_and_loaded(stage: int, folder: str) -> dict[str, list[float]]:
    """The elements of the tensors of an engine of zeros that has loaded the checkpoint of an engine of ones."""
    import deepspeed
    from deepspeed.checkpoint import ds_to_universal

    engine = make(1.0, stage, universal=False)
    engine.backward(engine(torch.ones(1, 4)))
    engine.step()
    engine.save_checkpoint(folder, tag="saved")
    paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))
    Path(folder, "latest_universal").write_text("universal", encoding="utf-8")
    other = make(0.0, stage, universal=True)
    other.load_checkpoint(folder)
    with deepspeed.zero.GatheredParameters(list(other.module.parameters()), enabled=stage == 3):
        return {name: sorted(set(each.flatten().tolist())) for name, each in other.module.state_dict().items()}


def main() -> int:
    """1 if a tensor is not that of the checkpoint."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for stage in (1, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                for name, got in saved_and_loaded(stage, folder).items():
                    print(f"stage {stage}, {name}: expected [1.0], got {got}")
                    wrong |= got != [1.0]
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
