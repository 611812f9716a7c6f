"""DeepSpeed in fp32: every rank keeps a copy of its partition of the parameters, which are in fp32 already.

Adam has two states of 4 bytes for each parameter. The optimizer's tensors beside the parameters take three.
"""

from __future__ import annotations

import json
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
WIDTH = 256


def copies(engine: Any, stage: int) -> int:
    """Bytes of the rank's masters that share no memory with its parameters."""
    optimizer = engine.optimizer
    masters = optimizer.fp32_partitioned_groups_flat if stage == 3 else optimizer.single_partition_of_fp32_groups
    parameters = [getattr(p, "ds_tensor", p) for p in engine.module.parameters()]
    own = {p.untyped_storage().data_ptr() for p in parameters}
    return sum(p.untyped_storage().nbytes() for p in masters if p.untyped_storage().data_ptr() not in own)


def train(stage: int) -> int:
    """The bytes of a rank's masters after a step in fp32."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first

    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    engine.backward(engine(torch.randn(1, WIDTH)).sum())
    engine.step()
    return copies(engine, stage)


def on_rank(rank: int, folder: str) -> None:
    """Train at every stage; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = [train(stage) for stage in (1, 2, 3)]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the bytes; 1 if there are some."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print(f"a rank's partition of the parameters: {4 * WIDTH * WIDTH // RANKS} bytes, in fp32")
    for stage, size in enumerate(found, start=1):
        print(f"stage {stage}: expected 0 bytes of fp32 copies, got {size}")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
