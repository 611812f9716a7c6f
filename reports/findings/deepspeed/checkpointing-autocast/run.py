"""DeepSpeed: deepspeed.checkpointing.checkpoint recomputes an activation without the autocast of its forward."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import checkpoint as torchs


class Model(torch.nn.Module):
    """Two layers that are recomputed in the backward, and the dtypes that they have computed in."""

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.checkpoint, self.dtypes = checkpoint, list[str]()

    def block(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.tanh(self.up(x)))
        self.dtypes.append(str(y.dtype))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.checkpoint(self.block, x)
        return y.float().square().mean()


def trained(stage: int, checkpoint: Callable[..., Any]) -> tuple[list[str], torch.Tensor]:
    """The dtypes of the forward and its recomputation, and a gradient."""
    import deepspeed

    torch.manual_seed(0)
    model = Model(checkpoint)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.randn(32, 16, requires_grad=True)))
    return model.dtypes, deepspeed.utils.safe_get_full_grad(model.up.weight).clone()


def main() -> int:
    """1 if a recomputation has another dtype than its forward."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    found = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for stage in (0, 2):
            _, expected = trained(stage, lambda function, x: function(x))
            for name, checkpoint in (
                ("torch", lambda *given: torchs.checkpoint(*given, use_reentrant=True)),
                ("deepspeed", deepspeed.checkpointing.checkpoint),
            ):
                dtypes, got = trained(stage, checkpoint)
                error = float((got - expected).norm() / expected.norm())
                found = found or len(set(dtypes)) > 1
                print(f"stage {stage}, {name}: forward and recomputation in {dtypes}, error of a gradient {error:.1e}")
        dist.destroy_process_group()
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
