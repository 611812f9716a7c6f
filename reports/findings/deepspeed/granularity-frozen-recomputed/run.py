"""DeepSpeed, stage 3: with stage3_module_granularity_threshold a frozen, recomputed block's backward raises."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint


class Block(torch.nn.Module):
    """A residual block of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 1), torch.nn.Linear(1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    """A layer, and a block of few parameters that is recomputed in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = torch.nn.Linear(8, 8), Block()

    def forward(self) -> torch.Tensor:
        return checkpoint(self.block, self.stem(torch.ones(2, 8)), use_reentrant=True).sum()


def outcome(threshold: int, frozen: bool) -> str:
    """A gradient of the stem, or the error; a threshold of 9 makes the block a leaf."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    torch.manual_seed(0)
    model = Model()
    zero = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_module_granularity_threshold": threshold,
    }
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    model.block.requires_grad_(not frozen)
    try:
        engine.backward(engine())
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return f"a gradient of {float(deepspeed.utils.safe_get_full_grad(model.stem.bias)[0]):.4f}"


def main() -> int:
    """1 if a frozen block's backward raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {(threshold, frozen): outcome(threshold, frozen) for threshold in (0, 9) for frozen in (False, True)}
        dist.destroy_process_group()
    for (threshold, frozen), got in found.items():
        print(f"stage3_module_granularity_threshold {threshold}, {frozen=}: {got}")
    return int(len(set(found.values())) > 1)


if __name__ == "__main__":
    sys.exit(main())
