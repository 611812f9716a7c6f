"""DeepSpeed stage 0 in 16 bits: initialize takes an optimizer step with zero gradients.

The model is a weight of 1 whose gradients are 0. With lr 0.25 and weight decay 0.5, one step of AdamW or SGD must
leave 0.875.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

OPTIMIZERS: dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.25, weight_decay=0.5),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.25, weight_decay=0.5, momentum=0.5),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.25, weight_decay=0.5),
}


class Model(torch.nn.Module):
    """The loss is the sum of the weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight.float().sum() * factor


def train(stage: int, name: str) -> tuple[str, float]:
    """The states that the optimizer has before the first step, and the weight after it."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    optimizer = OPTIMIZERS[name](model.parameters())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    states = [{key: float(value.flatten()[0]) for key, value in each.items()} for each in optimizer.state.values()]
    engine.backward(engine(0.0))
    engine.step()
    return str(states), float(model.weight[0])


def main() -> int:
    """1 if a weight is wrong."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 1):
            for name in OPTIMIZERS:
                states, weight = train(stage, name)
                print(f"stage {stage}, {name}: states at the start {states}; expected 0.875, got {weight}")
                wrong |= weight != 0.875
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
