"""DeepSpeed stage 3: load_checkpoint with load_optimizer_states=False gives every rank the buffers of rank 0.

A buffer counts 10 on rank 0 and 11 on rank 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Model(torch.nn.Module):
    """A weight, and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.tensor(0))

    def forward(self) -> torch.Tensor:
        return self.weight.sum()


def build() -> Any:
    """An engine of stage 3."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters()), config=config)
    return engine


def run(rank: int, folder: str) -> None:
    """Exit with 1 if this rank has another count than it saved."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    saving = build()
    saving.module.count.fill_(10 + rank)
    saving.save_checkpoint(f"{folder}/saved")
    counts = []
    for states in (True, False):
        engine = build()
        engine.load_checkpoint(f"{folder}/saved", load_optimizer_states=states)
        counts.append(int(engine.module.count))
        print(f"rank {rank}, load_optimizer_states={states}: expected a count of {10 + rank}, got {counts[-1]}")
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.exit(int(counts[1] != 10 + rank))


def main() -> int:
    """1 if a count is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.get_context("spawn").Process(target=run, args=(rank, folder)) for rank in range(2)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
    return max(abs(each.exitcode or 0) for each in ranks)


if __name__ == "__main__":
    sys.exit(main())
