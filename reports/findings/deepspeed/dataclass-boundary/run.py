"""DeepSpeed: if the module returns a dataclass, a step of two micro-steps loses the gradients of one of them."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class Output:
    """The outputs of the model."""

    loss: torch.Tensor


class Model(torch.nn.Module):
    """The loss is a multiple of the sum of two layers' weights, in a dataclass or a dict."""

    def __init__(self, output: type) -> None:
        super().__init__()
        self.output, self.layers = output, torch.nn.ModuleList(torch.nn.Linear(1, 8, bias=False) for _ in range(2))
        for parameter in self.parameters():
            torch.nn.init.zeros_(parameter)

    def forward(self, factor: float) -> Any:
        return self.output(loss=sum(layer(torch.full((1, 1), factor)).sum() for layer in self.layers))


def moved(stage: int, offloads: bool, output: type) -> list[float]:
    """How far a step of two micro-steps moves the first weight of each layer; the gradients are 1 and 3."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model(output)
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 4, "overlap_comm": True}
    if offloads:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's SGD
        "zero_optimization": zero,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    for factor in (1.0, 3.0):
        found = engine(factor)
        engine.backward(found["loss"] if isinstance(found, dict) else found.loss)
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        return [float(parameter[0]) for parameter in model.parameters()]


def main() -> int:
    """1 if a step is wrong."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as store:
        dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=0, world_size=1)
        for output in (dict, Output):
            for stage in (1, 2, 3):
                for offloads in (False, True):
                    found = moved(stage, offloads, output)
                    print(f"{output.__name__}, stage {stage}, offload {offloads}: expected [-2.0, -2.0], got {found}")
                    wrong |= found != [-2.0, -2.0]
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
