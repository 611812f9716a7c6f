"""DeepSpeed: after set_train_batch_size a step may have fewer micro-steps than it asks for.

The weight is 0, each micro-step has a gradient of 1, and the learning rate is 1: a step subtracts 1.
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


def train(stage: int) -> list[float]:
    """The weight after a step of one micro-step, and after each of the next four micro-steps, two of which are one."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found = []
    for micro_step in range(5):
        if micro_step == 1:
            engine.set_train_batch_size(2)
        engine.backward(engine())
        engine.step()
        with deepspeed.zero.GatheredParameters(model.weight, enabled=stage == 3):
            found.append(float(model.weight))
    return found


def main() -> int:
    """1 if a step comes at a wrong time."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    expected, wrong = [-1.0, -1.0, -2.0, -2.0, -3.0], False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 1, 2, 3):
            got = train(stage)
            print(f"stage {stage}: expected {expected}, got {got}")
            wrong |= got != expected
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
