"""DeepSpeed, stages 1 to 3: an engine clips by a norm 65536 times too large after one with torch_autocast in fp16.

Every weight has the gradient 1, so the norm is 2; clipped to 1 they are 0.5 each, and SGD with lr=1 moves them by -0.5.
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

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def build(stage: int, **more: Any) -> Any:
    """An engine in fp32 that clips to 1."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.utils.logger.setLevel("ERROR")
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        **more,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    return engine


def moved(stage: int) -> tuple[float, float]:
    """The weight after a step of a new engine, and the norm that it reports."""
    import deepspeed

    engine = build(stage)
    engine.backward(engine())
    engine.step()
    weight = engine.module.weight
    with deepspeed.zero.GatheredParameters(weight, enabled=stage == 3):
        return float(weight[0]), float(engine.get_global_grad_norm())


def main() -> int:
    """1 if the second engine differs from the first."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        before = {stage: moved(stage) for stage in (1, 2, 3)}
        build(1, torch_autocast={"enabled": True, "dtype": "float16"}).destroy()
        after = {stage: moved(stage) for stage in (1, 2, 3)}
        for when, found in (("before", before), ("after", after)):
            for stage, (weight, norm) in found.items():
                print(f"stage {stage}, {when} the other: expected -0.5, norm 2.0; got {weight:.7g}, norm {norm:g}")
        dist.destroy_process_group()
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
