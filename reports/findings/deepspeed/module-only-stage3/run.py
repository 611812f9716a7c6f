"""DeepSpeed stage 3: load_checkpoint with load_module_only loads no weights.

A model whose weights are 1 is saved. An engine whose weights are 0 loads the checkpoint.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the sum of the weights."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((8,), value))

    def forward(self) -> torch.Tensor:
        return self.weight.float().sum()


def build(stage: int, value: float) -> Any:
    """An engine whose weights all have a value."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(value)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters()), config=config)
    return engine


def loaded(stage: int, folder: str) -> tuple[bool, float]:
    """Whether load_checkpoint says that it has loaded, and the weight after it."""
    import deepspeed

    build(stage, 1.0).save_checkpoint(folder)
    engine = build(stage, 0.0)
    path, _ = engine.load_checkpoint(folder, load_module_only=True)
    weight = engine.module.weight
    with deepspeed.zero.GatheredParameters(weight, enabled=stage == 3):
        return path is not None, float(weight[0])


def main() -> int:
    """1 if a weight is wrong."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 1, 2, 3):
            told, weight = loaded(stage, f"{folder}/{stage}")
            print(f"stage {stage}: load_checkpoint returns a path: {told}; expected a weight of 1.0, got {weight}")
            wrong |= weight != 1.0
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
