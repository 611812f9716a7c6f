"""DeepSpeed stage 3: if a forward calls a leaf module twice, the backward raises or the gradient is wrong."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """Two layers; a forward calls the second one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def forward(self) -> torch.Tensor:
        return self.block(self.block(self.first(torch.ones(1, 4)))).sum()


def outcome(leaf: bool, bucket: int) -> str:
    """An element of the block's gradient after a forward that calls it twice, or the error."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    torch.manual_seed(0)
    model = Model()
    if leaf:
        deepspeed.utils.set_z3_leaf_modules(model, [torch.nn.Sequential])
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3, "reduce_bucket_size": bucket},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    try:
        engine.backward(engine())
    except AssertionError as error:
        return type(error).__name__
    gradient = deepspeed.utils.safe_get_full_grad(model.block[0].bias)
    return f"{float(gradient[0]):.6f}"


def main() -> int:
    """1 if a gradient is wrong or a backward raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {(leaf, bucket): outcome(leaf, bucket) for leaf in (False, True) for bucket in (500_000_000, 1)}
        dist.destroy_process_group()
    expected = found[False, 1]
    for (leaf, bucket), value in found.items():
        print(f"{'a leaf' if leaf else 'no leaf'}, reduce_bucket_size {bucket}: expected {expected}, got {value}")
    return int(any(value != expected for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
