"""DeepSpeed stages 1 and 2: of two backwards in one micro-step, the first one's gradients are lost.

Each backward has a gradient of 1, so that together they have 2.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def train(stage: int, *, managed: bool) -> float:
    """The change of the weight in a step with two backwards, and with a learning rate of 1."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "managed_gradient_accumulation": managed,
        "zero_optimization": {"stage": stage, "overlap_comm": False},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    engine.backward(engine())
    engine.step()
    with deepspeed.zero.GatheredParameters(model.weight, enabled=stage == 3):
        return -float(model.weight)


def main() -> int:
    """1 if a gradient is lost."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for managed in (False, True):
            for stage in (0, 1, 2, 3):
                got = train(stage, managed=managed)
                print(f"stage {stage}, managed_gradient_accumulation {managed}: expected 2.0, got {got}")
                wrong |= got != 2.0
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
