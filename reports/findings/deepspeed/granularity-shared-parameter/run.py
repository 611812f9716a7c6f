"""DeepSpeed, stage 3: with stage3_module_granularity_threshold a backward uses memory that nothing has set."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


class Block(torch.nn.Module):
    """A fine block: its scale, and a layer of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((8,), 3.0))
        self.shift = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift(torch.ones(1, 1))


class Model(torch.nn.Module):
    """A large layer and the block, whose scale the model's own forward uses again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = torch.nn.Linear(8, 8), Block()

    def forward(self) -> torch.Tensor:
        return self.block(self.stem(torch.ones(1, 8)) * self.block.scale).sum()


def gradients(threshold: int) -> list[float]:
    """A gradient of the stem in three steps at a rate of 0; a threshold of 5 makes the block a leaf."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    torch.manual_seed(0)
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_module_granularity_threshold": threshold,
        },
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found = []
    for _ in range(3):
        engine.backward(engine())
        gradient = deepspeed.utils.safe_get_full_grad(model.stem.bias)
        found.append(round(float(gradient[0]), 4))
        engine.step()
    return found


def main() -> int:
    """1 if the gradient depends on the threshold."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {threshold: gradients(threshold) for threshold in (0, 5)}
        dist.destroy_process_group()
    for threshold, got in found.items():
        print(f"stage3_module_granularity_threshold {threshold}: a gradient of {got}")
    return int(found[0] != found[5])


if __name__ == "__main__":
    sys.exit(main())
