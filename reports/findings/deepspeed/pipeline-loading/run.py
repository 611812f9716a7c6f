"""DeepSpeed, stage 3: with pipeline_loading_checkpoint a load hangs if the ranks are on several machines.

Each of two ranks has the local rank 0, as on two machines with a GPU each.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
#: Seconds from the save on; the load takes less than one.
LIMIT = 20


def on_rank(rank: int, machines: int, folder: str) -> None:
    """Save a checkpoint and load it."""
    warnings.simplefilter("ignore")
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": str(rank if machines == 1 else 0)}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    model = torch.nn.Linear(4, 4)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 3, "pipeline_loading_checkpoint": True},
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.save_checkpoint(f"{folder}/checkpoint")
    Path(folder, f"saved-{rank}").touch()
    engine.load_checkpoint(f"{folder}/checkpoint")
    Path(folder, f"loaded-{rank}").touch()


def outcome(machines: int) -> str:
    """How the load ends."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = mp.spawn(on_rank, (machines, folder), nprocs=RANKS, join=False)
        while len(list(Path(folder).glob("saved-*"))) < RANKS:
            time.sleep(0.1)
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and len(list(Path(folder).glob("loaded-*"))) < RANKS:
            time.sleep(0.1)
        loaded = len(list(Path(folder).glob("loaded-*")))
        for process in ranks.processes:
            process.kill()
    return "loaded" if loaded == RANKS else f"{RANKS - loaded} of {RANKS} ranks do not end the load"


def main() -> int:
    """1 if the load hangs on two machines and not on one."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {machines: outcome(machines) for machines in (1, 2)}
    for machines, end in found.items():
        print(f"{RANKS} ranks on {machines} machine{'s' * (machines > 1)}: expected loaded, got {end}")
    return int(found[1] == "loaded" != found[2])


if __name__ == "__main__":
    sys.exit(main())
