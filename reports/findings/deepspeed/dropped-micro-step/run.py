"""DeepSpeed: engine.zero_grad() leaves the gradients in place that earlier backwards have accumulated.

The loss is the weight times a factor. A micro-step of factor 100 is dropped by zero_grad(), and the two micro-steps of
the step have a mean gradient of 1, so that SGD with lr 1 must move the weight by -1.
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
    """The loss is the weight times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, factor: float) -> torch.Tensor:
        return factor * self.weight.sum()


def backward(engine: Any, factor: float, *, last: bool) -> None:
    """A micro-step without its update."""
    engine.set_gradient_accumulation_boundary(last)
    engine.backward(engine(factor))


def train(stage: int, owner: str, *, bf16: bool) -> float:
    """The weight after a step; ``owner`` is that of the zero_grad() that drops a micro-step before."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    client = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=client, config=config)
    backward(engine, 100.0, last=False)
    {"engine": engine, "optimizer": optimizer, "module": model}[owner].zero_grad()
    backward(engine, 1.0, last=False)
    backward(engine, 1.0, last=True)
    engine.step()
    with deepspeed.zero.GatheredParameters(model.weight, enabled=stage == 3):
        return float(model.weight)


def main() -> int:
    """1 if dropped gradients are in the step."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for owner in ("engine", "optimizer", "module"):
            for stage, bf16 in ((0, False), (1, False), (1, True), (2, False), (3, False)):
                got = train(stage, owner, bf16=bf16)
                dtype = "bf16" if bf16 else "fp32"
                print(f"stage {stage} in {dtype}, {owner}.zero_grad(): expected -1.0, got {got}")
                wrong |= got != -1.0
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
