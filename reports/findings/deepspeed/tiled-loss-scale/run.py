"""DeepSpeed: TiledFusedLogitsLoss does not scale the gradients of its parameters by the gradient of its loss."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

#: Micro-steps, and keys of the configuration.
CASES: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("one micro-step", 1, {}),
    ("two micro-steps", 2, {}),
    ("fp16, loss_scale 1024", 1, {"fp16": {"enabled": True, "loss_scale": 1024}}),
)


class Model(torch.nn.Module):
    """A layer and a head, whose logits and loss are computed whole or in tiles."""

    def __init__(self, tiled: bool) -> None:
        super().__init__()
        self.stem, self.head, self.tiled = torch.nn.Linear(4, 4), torch.nn.Linear(4, 6, bias=False), tiled

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

        hidden = torch.tanh(self.stem(x))
        if not self.tiled:
            return loss(self, hidden.flatten(0, 1), y.flatten())
        found: torch.Tensor = TiledFusedLogitsLoss.apply(loss, self, hidden, y, None, 2, [self.head.weight], "sum")
        return found


def loss(model: Model, hidden: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of some tokens."""
    return cross_entropy(model.head(hidden), y, reduction="sum")


def gradients(tiled: bool, stage: int, micro_steps: int, keys: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Those of the first step."""
    import deepspeed

    torch.manual_seed(0)
    model = Model(tiled)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_steps,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config | keys)
    for micro_step in range(micro_steps):
        x = torch.randn(1, 8, 4, dtype=torch.float16 if keys else torch.float32)
        engine.backward(engine(x, torch.randint(6, (1, 8))))
        if micro_step < micro_steps - 1:
            engine.step()
    return {name: deepspeed.utils.safe_get_full_grad(p).clone().float() for name, p in model.named_parameters()}


def main() -> int:
    """1 if tiles change a gradient."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    wrong = False
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        for stage in (1, 2, 3):
            for name, micro_steps, keys in CASES:
                whole, tiled = (gradients(tiled, stage, micro_steps, keys) for tiled in (False, True))
                ratios = {key: round(float(tiled[key].norm() / whole[key].norm()), 3) for key in whole}
                wrong = wrong or any(abs(ratio - 1) > 0.1 for ratio in ratios.values())
                print(f"stage {stage}, {name}: tiled gradients / whole ones {ratios}")
        dist.destroy_process_group()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
