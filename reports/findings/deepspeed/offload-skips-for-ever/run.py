"""DeepSpeed stages 1 and 2 with the optimizer in host memory: after one step that overflows, every step is skipped.

Gradients accumulate in fp32. The first step's gradient is infinite, and those of the next two are 1.
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
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, factor: float) -> torch.Tensor:
        return self.weight.float().sum() * factor


def skipped(stage: int, offload: str, accumulator: str) -> tuple[int, float]:
    """The number of steps that are skipped, and the weight after the three steps; the learning rate is 1."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": True, "check_grad_overflow": True},
        "data_types": {"grad_accum_dtype": accumulator},
        "zero_optimization": {"stage": stage, "offload_optimizer": {"device": offload}},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for factor in (float("inf"), 1.0, 1.0):
        engine.backward(engine(factor))
        engine.step()
    return engine.skipped_steps, float(model.weight[0])


def main() -> int:
    """1 if a good step is skipped."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for stage, offload, accumulator in (
            (1, "cpu", "bf16"),
            (1, "cpu", "fp32"),
            (2, "none", "fp32"),
            (2, "cpu", "bf16"),
            (2, "cpu", "fp32"),
        ):
            got = skipped(stage, offload, accumulator)
            print(f"stage {stage}, offload {offload}, gradients in {accumulator}: expected (1, -2.0), got {got}")
            wrong |= got != (1, -2.0)
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
