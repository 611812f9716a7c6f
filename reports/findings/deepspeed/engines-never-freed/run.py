"""DeepSpeed stage 3: the parameters and optimizer states of an engine are not freed after engine.destroy()."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, ENGINES = 2, 4
WIDTH = 256


def living() -> int:
    """Bytes of the living tensors."""
    gc.collect()
    storages = [each.untyped_storage() for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def train(stage: int) -> None:
    """One step of an engine, which is then destroyed; nothing refers to it or to the model any more."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first

    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": WIDTH * WIDTH,
            "stage3_param_persistence_threshold": 0,
        },
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    engine.backward(engine(torch.randn(1, WIDTH)).sum())
    engine.step()
    engine.destroy()


def after_each(stage: int) -> list[int]:
    """Bytes of living tensors after each of several engines."""
    found = []
    for _ in range(ENGINES):
        train(stage)
        found.append(living())
    return found


def on_rank(rank: int, folder: str) -> None:
    """Train at stages 2 and 3; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {stage: after_each(stage) for stage in (2, 3)}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the bytes; 1 if they grow from one engine to the next."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    grows = False
    for stage, sizes in found.items():
        grows = grows or sizes[-1] > sizes[0]
        print(f"stage {stage}: bytes of tensors after {ENGINES} engines: expected {sizes[0]} after each, got {sizes}")
    return int(grows)


if __name__ == "__main__":
    sys.exit(main())
