"""DeepSpeed stages 1 to 3: a parameter that is frozen in the middle of training goes on moving."""

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
    """The loss is the sum of all weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(8))
        self.second = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return (self.first + self.second).sum()


def value_after(stage: int) -> float:
    """The first weight after a step in which it trains, and one in which it does not require a gradient."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for trains in (True, False):
        model.first.requires_grad_(trains)
        engine.backward(engine())
        engine.step()
    with deepspeed.zero.GatheredParameters([model.first], enabled=stage == 3):
        return float(model.first[0])


def on_rank(rank: int, folder: str) -> None:
    """Try each stage."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    Path(folder, str(rank)).write_text(json.dumps({stage: value_after(stage) for stage in range(4)}), encoding="utf-8")


def main() -> int:
    """1 if a frozen parameter moves."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "0").read_text(encoding="utf-8"))
    for stage, value in found.items():
        print(f"stage {stage}: expected -1.0, got {value}")
    return int(any(value != -1.0 for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
