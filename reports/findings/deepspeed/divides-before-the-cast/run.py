"""DeepSpeed: communication_data_type fp32 adds gradients in fp32 that were divided by the ranks in 16 bits before.

The gradient of each weight is 1 on every rank, so plain SGD with lr 1 must move it by -1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 3
DTYPES: dict[str, dict[str, Any]] = {"bf16": {"enabled": True}, "fp16": {"enabled": True, "loss_scale": 1.0}}


class OneWeight(torch.nn.Module):
    """The loss is the sum of the weight, so that its gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.float().sum()


def move(stage: int, dtype: str) -> float:
    """How far one step moves the fp32 weight."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import safe_get_full_fp32_param

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    get_accelerator().is_fp16_supported = lambda: True  # only a flag: all arithmetic is there
    model = OneWeight()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        dtype: DTYPES[dtype],
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    engine.backward(engine())
    engine.step()
    return float(safe_get_full_fp32_param(model.weight)[0])


def on_rank(rank: int, folder: str) -> None:
    """Take one step at stages 1 to 3 in both dtypes; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {f"stage {stage}, {dtype}": move(stage, dtype) for stage in (1, 2, 3) for dtype in DTYPES}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is not -1 up to roundings in fp32."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print("expected everywhere: the weight moves by -1")
    for which, moved in found.items():
        print(f"{which}: moved by {moved:.7g}")
    return int(any(abs(moved + 1) > 1e-6 for moved in found.values()))


if __name__ == "__main__":
    sys.exit(main())
