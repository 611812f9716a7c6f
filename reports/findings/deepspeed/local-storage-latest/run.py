"""DeepSpeed: with use_node_local_storage only the first machine has the file "latest", and the others load nothing.

Each of two ranks has the local rank 0 and a folder of its own, as on two machines with a GPU each. The saved weights
are 1, those of the engine that loads are 0.
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

RANKS = 2


def build(stage: int, value: float) -> Any:
    """An engine whose weights all have a value."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.utils.logger.setLevel("ERROR")
    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.constant_(model.weight, value)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "checkpoint": {"use_node_local_storage": True},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    return engine


def on_rank(rank: int, stage: int, folder: str, found: Any) -> None:
    """Save a checkpoint to this machine's folder, and load it."""
    warnings.simplefilter("ignore")
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    machine = f"{folder}/machine-{rank}"
    build(stage, 1.0).save_checkpoint(machine)
    engine = build(stage, 0.0)
    path, _ = engine.load_checkpoint(machine)
    found[rank] = (path is not None, float(engine.module.weight[0, 0]))
    dist.destroy_process_group()


def main() -> int:
    """1 if a machine does not load what it has saved."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    for stage in (0, 1):
        with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
            found = manager.dict()
            mp.spawn(on_rank, (stage, folder, found), nprocs=RANKS)
            for rank, (loaded, weight) in sorted(found.items()):
                words = "a path" if loaded else "None"
                print(f"stage {stage}, machine {rank}: expected a weight of 1.0, got {weight}, and {words}")
                wrong |= weight != 1.0
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
