"""DeepSpeed: the gradient of a part of the model that is frozen in one micro-step of a step is wrong.

The loss is the sum of two weights times a factor, whose mean over the ranks is 2. Of the two micro-steps of each step
one trains both weights, and in the other one the second weight is frozen. With SGD of lr 1 each step must move the
first weight by -2 and the second by -1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, STEPS = 2, 2


class Sum(torch.nn.Module):
    """Adds the sum of its weight to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum()


class Model(torch.nn.Module):
    """The sum of two weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Sum(), Sum()

    def forward(self, factor: float) -> torch.Tensor:
        loss: torch.Tensor = factor * self.second(self.first(torch.zeros(())))
        return loss


def train(stage: int, frozen: int) -> list[float]:
    """An element of each weight; the second weight is frozen in micro-step ``frozen`` of each step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.utils.logger.setLevel("ERROR")
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    client = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=client, config=config)
    for _ in range(STEPS):
        for micro_step in range(2):
            model.second.requires_grad_(micro_step != frozen)
            engine.backward(engine(1.0 + 2.0 * dist.get_rank()))
            engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        return [p[0].item() for p in model.parameters()]


def on_rank(rank: int, folder: str) -> None:
    """Every stage, with the weight frozen in no micro-step, in the first and in the second."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_SIZE": str(RANKS)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for frozen, second in ((None, -4.0), (0, -2.0), (1, -2.0)):
        for stage in range(4):
            everyone: list[list[float]] = [[] for _ in range(RANKS)]
            dist.all_gather_object(everyone, train(stage, -1 if frozen is None else frozen))
            if rank == 0:
                print(f"{frozen=}, {stage=}: expected {[-4.0, second]} on each rank, got {everyone}", flush=True)
                if everyone != [[-4.0, second]] * RANKS:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a weight is wrong."""
    os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
