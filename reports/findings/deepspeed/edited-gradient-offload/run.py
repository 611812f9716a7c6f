"""DeepSpeed with the optimizer in host memory: clipping takes the norm from before safe_set_full_grad.

safe_update_full_grad_vectorized does the same to a list of gradients.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
_PLACES = [(stage, device) for stage in (1, 2, 3) for device in ("none", "cpu")]


class Model(torch.nn.Module):
    """The loss is the sum of both weights, so that each gradient is one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(8))
        self.second = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.first.sum() + self.second.sum()


def train(stage: int, device: str, setter: str) -> tuple[float, float]:
    """The norm, and an element of the first weight after a step in which the client zeroes the second gradient."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": stage,
            "stage3_param_persistence_threshold": 0,
            "offload_optimizer": {"device": device, "pin_memory": False},
        },
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    if setter == "full":
        deepspeed.utils.safe_set_full_grad(model.second, torch.zeros(8))
    else:
        deepspeed.utils.safe_update_full_grad_vectorized([model.second], lambda gradient, _: torch.zeros_like(gradient))
    engine.step()
    first = deepspeed.utils.safe_get_full_fp32_param(model.first)
    return round(float(engine.get_global_grad_norm()), 3), round(float(first[0]), 3)


def on_rank(rank: int, folder: str) -> None:
    """Try each stage, with the optimizer on the device and in host memory."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    cases = [(*each, setter) for setter in ("full", "vectorized") for each in _PLACES]
    found = {f"{setter}, stage {stage}, {device}": train(stage, device, setter) for stage, device, setter in cases}
    Path(folder, str(rank)).write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if a norm is not that of the edited gradients."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "0").read_text(encoding="utf-8"))
    for case, (norm, weight) in found.items():
        print(f"{case}: expected norm 2.828 and weight -0.354, got norm {norm} and weight {weight}")
    return int(any(got != [2.828, -0.354] for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
