"""DeepSpeed stage 3: weights that stay whole are sharded by a reading, and the next step gathers them again."""

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

RANKS, STEPS = 2, 4
WIDTH = 256

_received = [0]
_all_gather = dist.all_gather_into_tensor


def counted(output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """An all-gather whose bytes from other ranks are counted."""
    _received[0] += output_tensor.nbytes - input_tensor.nbytes
    return _all_gather(output_tensor, input_tensor, *args, **kwargs)


def train(reads: bool) -> tuple[list[int], list[int]]:
    """The elements that are whole before each step, and the bytes that the step's all-gathers receive."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first

    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": WIDTH * WIDTH},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    whole, received = [], []
    for _step in range(STEPS):
        if reads:
            with deepspeed.zero.GatheredParameters(list(model.parameters())):
                pass
        whole.append(sum(p.numel() for p in model.parameters()))
        before = _received[0]
        engine.backward(engine(torch.randn(1, WIDTH)).sum())
        engine.step()
        received.append(_received[0] - before)
    return whole[1:], received[1:]


def on_rank(rank: int, folder: str) -> None:
    """Train without and with readings; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.all_gather_into_tensor = counted
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = [train(reads=False), train(reads=True)]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print elements and bytes; 1 if a reading changes them."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        plain, read = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print(f"elements that are whole before the steps: expected {plain[0]}, got {read[0]} after a reading")
    print(f"bytes that all-gathers of the steps receive: expected {plain[1]}, got {read[1]} after a reading")
    return int(plain != read)


if __name__ == "__main__":
    sys.exit(main())
