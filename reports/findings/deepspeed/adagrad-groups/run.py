"""DeepSpeed stages 1 to 3: torch's Adagrad loses its parameter groups.

Both weights have a gradient of 1, so that the first step of Adagrad moves each of them by its learning rate.
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
    """The loss is the sum of all elements."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.ones(8) for _ in range(count))

    def forward(self) -> torch.Tensor:
        return sum(p.sum() for p in self.weights)


def train(stage: int, rates: list[float]) -> list[float] | str:
    """Each group's weight after one step, or the exception; each group has a learning rate of its own."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(len(rates))
    groups: list[dict[str, Any]] = [{"params": [p], "lr": lr} for p, lr in zip(model.weights, rates, strict=True)]
    optimizer = torch.optim.Adagrad(groups, lr=0.125)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    try:
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        engine.backward(engine())
        engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            return [round(float(p[0]), 6) for p in model.weights]
    except Exception as error:  # noqa: BLE001 - the exception is the finding
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """1 if a weight is wrong."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage in (0, 1, 2, 3):
            for rates in ([0.5], [0.5, 0.25]):
                got, expected = train(stage, rates), [1 - lr for lr in rates]
                print(f"stage {stage}, learning rates {rates}: expected {expected}, got {got}")
                wrong |= got != expected
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
