"""DeepSpeed, stage 3: with gradient_predivide_factor equal to the number of ranks, gradients are divided twice.

The gradient of each weight is 1 on every rank, so plain SGD with lr 1 must move it by -1.
"""

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


class OneWeight(torch.nn.Module):
    """The loss is the sum of the weight, so that its gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def move(stage: int, factor: float) -> float:
    """How far one step moves the weight."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = OneWeight()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "gradient_predivide_factor": factor,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_scatter": False},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    engine.backward(engine())
    engine.step()
    with deepspeed.zero.GatheredParameters([model.weight], enabled=stage == 3):
        return float(model.weight[0])


def on_rank(rank: int, folder: str) -> None:
    """Take one step at each stage, with three factors; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {f"stage {stage}, factor {factor}": move(stage, factor) for stage in range(4) for factor in (1.0, 2.0, 4.0)}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is not -1."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print(f"{RANKS} ranks; expected everywhere: the weight moves by -1")
    for which, moved in found.items():
        print(f"{which}: moved by {moved}")
    return int(any(moved != -1 for moved in found.values()))


if __name__ == "__main__":
    sys.exit(main())
