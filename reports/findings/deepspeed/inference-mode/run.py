"""DeepSpeed: at stage 3 the step after an evaluation in torch.inference_mode() raises."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
MODES: tuple[Callable[[], AbstractContextManager[Any]], ...] = (torch.no_grad, torch.inference_mode)


def train(stage: int, mode: Callable[[], AbstractContextManager[Any]]) -> str:
    """A step, an evaluation and a step; the outcome in words."""
    import deepspeed

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        },
    )
    try:
        for step in range(2):
            engine.backward(engine(torch.ones(2, 4)).square().sum())
            engine.step()
            if step == 0:
                engine.eval()
                with mode():
                    engine(torch.ones(2, 4))
                engine.train()
    except RuntimeError as error:
        return str(error).partition(".")[0]
    return "a step"


def on_rank(rank: int, folder: str) -> None:
    """At stages 2 and 3, with each mode; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for stage, mode in [(stage, mode) for mode in MODES for stage in (2, 3)]:
        got = train(stage, mode)
        if rank == 0:
            print(f"stage {stage}, torch.{mode.__name__}(): expected a step, got {got}", flush=True)
            if got != "a step":
                Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if training raises."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
