"""DeepSpeed, stage 3: the backward of a block raises if its recomputation runs to its end."""

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
        self.up, self.down = torch.nn.Linear(8, 4), torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    """A layer, and a block that is recomputed in the backward."""

    def __init__(self, early_stop: bool) -> None:
        super().__init__()
        self.stem, self.block, self.early_stop = torch.nn.Linear(8, 8), Block(), early_stop

    def forward(self) -> torch.Tensor:
        hidden = self.stem(torch.ones(2, 8))
        return checkpoint(self.block, hidden, use_reentrant=False, early_stop=self.early_stop).sum()


def outcome(stage: int, early_stop: bool) -> str:
    """A gradient of the stem, or the error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    torch.manual_seed(0)
    model = Model(early_stop)
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "zero_optimization": zero}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    try:
        engine.backward(engine())
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return f"a gradient of {float(deepspeed.utils.safe_get_full_grad(model.stem.bias)[0]):.4f}"


def main() -> int:
    """1 if the backward raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {(stage, early): outcome(stage, early) for stage in (2, 3) for early in (True, False)}
        dist.destroy_process_group()
    for (stage, early_stop), got in found.items():
        print(f"stage {stage}, {early_stop=}: {got}")
    return int(len(set(found.values())) > 1)


if __name__ == "__main__":
    sys.exit(main())
