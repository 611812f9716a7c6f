"""DeepSpeed stage 2: with gradient accumulation a rank holds its partition of the gradients twice.

At each collective of a backward, rank 0 adds the bytes of all living tensors as large as its partition.
"""

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

RANKS, MICRO_STEPS = 2, 3
BLOCKS, WIDTH = 8, 64
PARTITION = 4 * BLOCKS * WIDTH * WIDTH // RANKS


def partitions() -> set[int]:
    """The memory of the tensors that are as large as a rank's partition."""
    storages = [each.untyped_storage() for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    return {each.data_ptr() for each in storages if each.nbytes() == PARTITION}


def train() -> list[int]:
    """By micro-step: how many partitions of gradients there were at once, in the second step."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first

    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BLOCKS)))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": MICRO_STEPS,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": WIDTH * WIDTH},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    reduce, found, before = dist.all_reduce, [0] * 2 * MICRO_STEPS, set[int]()

    def look(*args: object, **kwargs: object) -> object:
        if dist.get_rank() == 0 and engine.micro_steps >= MICRO_STEPS:
            found[engine.micro_steps] = max(found[engine.micro_steps], len(partitions() - before))
        return reduce(*args, **kwargs)

    for _ in range(2):
        before = partitions()
        for _ in range(MICRO_STEPS):
            loss = engine(torch.randn(1, WIDTH)).sum()
            dist.all_reduce = look
            engine.backward(loss)
            dist.all_reduce = reduce
            engine.step()
    return found[MICRO_STEPS:]


def on_rank(rank: int, folder: str) -> None:
    """Train; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = train()
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the numbers; 1 if one is larger than 1."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    for micro_step, number in enumerate(found):
        print(f"micro-step {micro_step}: expected 1 partition of gradients during backward, got {number}")
    return int(any(number > 1 for number in found))


if __name__ == "__main__":
    sys.exit(main())
