"""DeepSpeed stage 0 in fp16: the dynamic loss scale has no hysteresis.

With hysteresis 2 the first overflow leaves the loss scale alone, and the second one halves it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the sum of the weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight.float().sum() * factor


def scales(stage: int, factors: list[float]) -> list[float]:
    """The loss scale after each step; an infinite factor overflows."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # a flag: torch computes in fp16
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 2},
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found = []
    for factor in factors:
        engine.backward(engine(factor))
        engine.step()
        found.append(float(optimizer.loss_scale))
    return found


def main() -> int:
    """1 if the stages' loss scales differ."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong, bad = False, float("inf")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for what, factors in (("overflows", [bad, bad, bad]), ("good steps", [0.0] * 5)):
            expected = scales(2, factors)
            for stage in (1, 0):
                got = scales(stage, factors)
                print(f"{what}, stage {stage}: expected {expected} as at stage 2, got {got}")
                wrong |= got != expected
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
