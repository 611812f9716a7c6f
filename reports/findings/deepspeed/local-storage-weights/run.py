"""DeepSpeed, stage 3: with use_node_local_storage a load without optimizer states raises on every machine.

Each of two ranks has the local rank 0 and a folder of its own, as on two machines with a GPU each.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def build(stage: int) -> Any:
    """An engine of a small model."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    deepspeed.utils.logger.setLevel("ERROR")
    model = torch.nn.Linear(4, 4)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "checkpoint": {"use_node_local_storage": True},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    return engine


def on_rank(rank: int, stage: int, whole: bool, folder: str, found: Any) -> None:
    """Save a checkpoint to this machine's folder, and load it."""
    warnings.simplefilter("ignore")
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    machine = f"{folder}/machine-{rank}"
    build(stage).save_checkpoint(machine, tag="first")
    # the file that DeepSpeed writes on one machine only: see ../local-storage-latest
    Path(machine, "latest").write_text("first", encoding="utf-8")
    engine = build(stage)
    try:
        engine.load_checkpoint(machine, tag="first", load_optimizer_states=whole)
        found[rank] = "loaded"
    except ValueError as error:
        found[rank] = f"{type(error).__name__}: {error}".replace(folder, "...")
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """1 if a load raises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wrong = False
    for stage, whole in ((2, False), (3, True), (3, False)):
        with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
            found = manager.dict()
            mp.spawn(on_rank, (stage, whole, folder, found), nprocs=RANKS)
            for rank, end in sorted(found.items()):
                print(f"stage {stage}, load_optimizer_states={whole}, machine {rank}: expected loaded, got {end}")
                wrong |= end != "loaded"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
