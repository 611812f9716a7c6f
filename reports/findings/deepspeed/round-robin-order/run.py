"""DeepSpeed with round_robin_gradients: the fp32 value of a parameter, and its universal checkpoint, are another's."""

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


class Model(nn.Module):
    """Four parameters of four elements, the i-th full of i."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.full((4,), float(index))) for index in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * sum(weight.sum() for weight in self.weights)


def make(round_robin: bool) -> Any:
    """An engine at stage 2 whose updates change nothing."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "lr": 0.0}},
        "zero_optimization": {"stage": 2, "round_robin_gradients": round_robin},
    }
    return deepspeed.initialize(model=Model(), config=config)[0]


def read(engine: Any) -> list[list[float]]:
    """Each parameter's fp32 elements, as DeepSpeed's function gives them."""
    from deepspeed.utils import safe_get_full_fp32_param

    return [safe_get_full_fp32_param(weight).tolist() for weight in engine.module.weights]


def converted(engine: Any, folder: str) -> list[list[float]]:
    """Each parameter's fp32 elements in the universal form of the engine's checkpoint."""
    from deepspeed.checkpoint import ds_to_universal

    engine.save_checkpoint(folder, tag="saved")
    if dist.get_rank() == 0:
        paths = {"input_folder": f"{folder}/saved", "output_folder": f"{folder}/universal"}
        options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False, "strict": True}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            ds_to_universal.main(SimpleNamespace(**paths, **options, inject_missing_state=True))
    dist.barrier()
    files = [f"{folder}/universal/zero/weights.{index}/fp32.pt" for index in range(4)]
    return [torch.load(file, weights_only=True)["param"].tolist() for file in files]


def run(rank: int, store: str, folder: str, wrong: Any) -> None:
    """One of two ranks."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    expected = [[float(index)] * 4 for index in range(4)]
    for round_robin in (False, True):
        engine = make(round_robin)
        engine.backward(engine(torch.ones(())))
        engine.step()
        for what, got in (
            ("safe_get_full_fp32_param", read(engine)),
            ("universal", converted(engine, f"{folder}/{round_robin}")),
        ):
            if rank == 0:
                values = [[sorted(set(each)) for each in values] for values in (expected, got)]
                print(f"round_robin_gradients {round_robin}, {what}: expected {values[0]}, got {values[1]}")
                wrong.value |= got != expected
    dist.destroy_process_group()


def main() -> int:
    """1 if a parameter has another's values."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = mp.get_context("spawn").Value("b", False)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (f"{folder}/store", folder, wrong), nprocs=2)
    return int(wrong.value)


if __name__ == "__main__":
    sys.exit(main())
