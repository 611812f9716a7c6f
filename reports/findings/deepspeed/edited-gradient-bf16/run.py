"""DeepSpeed's BF16_Optimizer: safe_set_full_grad changes nothing."""

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


class Model(torch.nn.Module):
    """The loss is the sum of the weights, so that each gradient is one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def train(accumulated_in: str) -> tuple[float, float]:
    """An element of the gradient that the client has zeroed, and of the weight after the step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": accumulated_in},
        "zero_optimization": {"stage": 1},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    deepspeed.utils.safe_set_full_grad(model.weight, torch.zeros(8))
    gradient = deepspeed.utils.safe_get_full_grad(model.weight)
    read = float(gradient[0])
    engine.step()
    return read, float(deepspeed.utils.safe_get_full_fp32_param(model.weight)[0])


def on_rank(rank: int, folder: str) -> None:
    """Accumulate in each dtype."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {dtype: train(dtype) for dtype in ("bf16", "fp32")}
    Path(folder, str(rank)).write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """1 if the step applies the gradient from before the call."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "0").read_text(encoding="utf-8"))
    for dtype, (gradient, weight) in found.items():
        print(f"accumulated in {dtype}: expected gradient 0.0 and weight 0.0, got {gradient} and {weight}")
    return int(any(got != [0.0, 0.0] for got in found.values()))


if __name__ == "__main__":
    sys.exit(main())
