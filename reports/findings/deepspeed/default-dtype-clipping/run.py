"""DeepSpeed: at stage 0 gradients are clipped by a limit in the default dtype of the process.

The gradient is 1, so that with gradient_clipping 0.3 and SGD of lr 1 a step must move the weight by -0.3. The client
sets the default dtype to bf16, as one does that builds its model in 16 bits, and the model is in fp32.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist

LIMIT, TOLERANCE = 0.3, 1e-5


class Model(torch.nn.Module):
    """The sum of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def train(stage: int, dtype: torch.dtype) -> float:
    """The weight after a step in which ``dtype`` is the default one."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.utils.logger.setLevel("ERROR")
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": LIMIT,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    client = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=client, config=config)
    engine.backward(engine())
    torch.set_default_dtype(dtype)
    engine.step()
    torch.set_default_dtype(torch.float32)
    with deepspeed.zero.GatheredParameters(model.weight, enabled=stage == 3):
        return float(model.weight)


def main() -> int:
    """1 if a step has another length."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for dtype in (torch.float32, torch.bfloat16):
            for stage in range(4):
                got = train(stage, dtype)
                print(f"default dtype {dtype}, stage {stage}: expected {-LIMIT}, got {got:.6f}")
                wrong |= abs(got + LIMIT) > TOLERANCE
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
