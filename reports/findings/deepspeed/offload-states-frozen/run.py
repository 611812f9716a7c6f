"""DeepSpeed: at stage 3 offload_states raises if a parameter is frozen."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


def train(frozen: bool) -> str:
    """A step, after which the parameters leave the device and come back, and a step; the outcome in words."""
    import deepspeed
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model[0].requires_grad_(not frozen)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(p for p in model.parameters() if p.requires_grad),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 3},
        },
    )
    try:
        for _ in range(2):
            engine.backward(engine(torch.ones(2, 4)).square().sum())
            engine.step()
            engine.offload_states(include={OffloadStateTypeEnum.lp_params})
            engine.reload_states()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "two steps"


def main() -> int:
    """1 if the defect is there."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for frozen in (False, True):
            found = train(frozen)
            wrong = wrong or found != "two steps"
            print(f"{'with' if frozen else 'without'} a frozen layer: expected two steps, got {found}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
