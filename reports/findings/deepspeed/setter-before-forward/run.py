"""DeepSpeed stages 1 to 3: a parameter that safe_set_full_fp32_param sets has its old value in the next forward."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


class Model(torch.nn.Module):
    """The loss is the sum of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def loss_after(stage: int) -> float:
    """The loss of the first forward after every weight was set to one."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    deepspeed.utils.safe_set_full_fp32_param(model.weight, torch.ones(8))
    return float(engine())


def on_rank(rank: int, folder: str) -> None:
    """Try each stage."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    Path(folder, str(rank)).write_text(json.dumps({stage: loss_after(stage) for stage in (1, 2, 3)}), encoding="utf-8")


def main() -> int:
    """1 if a forward uses old values."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "0").read_text(encoding="utf-8"))
    for stage, loss in found.items():
        print(f"stage {stage}: expected a loss of 8.0, got {loss}")
    return int(any(loss != 8.0 for loss in found.values()))


if __name__ == "__main__":
    sys.exit(main())
