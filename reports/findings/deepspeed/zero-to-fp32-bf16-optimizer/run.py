"""DeepSpeed, stage 1 in bf16 with gradients accumulated in fp32: zero_to_fp32 refuses the checkpoint."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist


def consolidate(stage: int, accumulator: str, folder: str) -> str:
    """Train for a step, save, and consolidate the checkpoint."""
    import deepspeed
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = torch.nn.Linear(2, 2)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": accumulator},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), config=config)
    engine.backward(engine(torch.ones(1, 2, dtype=torch.bfloat16)).sum())
    engine.step()
    engine.save_checkpoint(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return f"consolidated {sorted(get_fp32_state_dict_from_zero_checkpoint(folder))}"
    except ValueError as error:
        return f"ValueError: {str(error).replace(folder, 'FOLDER')}"


def main() -> int:
    """Consolidate at stages 1 to 3 with both accumulators, in one process; 1 if one is refused."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (1, 2, 3):
            for accumulator in ("bf16", "fp32"):
                found[stage, accumulator] = consolidate(stage, accumulator, f"{folder}/{stage}{accumulator}")
    for (stage, accumulator), got in found.items():
        print(f"stage {stage}, grad_accum_dtype {accumulator}: {got}")
    return int(any(got.startswith("ValueError") for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
