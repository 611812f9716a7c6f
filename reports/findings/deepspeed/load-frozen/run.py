"""DeepSpeed stages 2 and 3: load_checkpoint raises if a parameter is frozen that trained at the save."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist


class Model(torch.nn.Module):
    """The loss is the sum of all weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(8)), torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return (self.first + self.second).sum()


def outcome(stage: int, folder: str) -> str:
    """The first weight after a step, a save, another step, and a load while it does not require a gradient; or the
    error of the load."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(2):
        engine.backward(engine())
        engine.step()
        if step == 0:
            engine.save_checkpoint(f"{folder}/stage{stage}")
    model.first.requires_grad_(False)
    try:
        engine.load_checkpoint(f"{folder}/stage{stage}")
    except KeyError as error:
        return f"KeyError: {error}"
    with deepspeed.zero.GatheredParameters([model.first], enabled=stage == 3):
        return str(float(model.first[0]))


def main() -> int:
    """1 if a load raises."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
        found = {stage: outcome(stage, folder) for stage in range(4)}
        dist.destroy_process_group()
    for stage, value in found.items():
        print(f"stage {stage}: expected -1.0, got {value}")
    return int(any(value != "-1.0" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
