"""DeepSpeed: a parameter that was frozen at initialize is never trained.

Each gradient is 1 and the learning rate is 1. The second weight is frozen at first, and trains from the second step on.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the sum of two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(8)), torch.nn.Parameter(torch.zeros(8))
        self.second.requires_grad_(False)

    def forward(self) -> torch.Tensor:
        return (self.first + self.second).float().sum()


def train(stage: int, dtype: str) -> tuple[float, float]:
    """Both weights after two steps."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": dtype == "bf16"},
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(2):
        engine.backward(engine())
        engine.step()
        model.second.requires_grad_(True)
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        return float(model.first[0]), float(model.second[0])


def main() -> int:
    """1 if a weight is wrong."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 1, 2, 3):
            for dtype in ("fp32", "bf16"):
                got = train(stage, dtype)
                print(f"stage {stage}, {dtype}: expected (-2.0, -1.0), got {got}")
                wrong |= got != (-2.0, -1.0)
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
