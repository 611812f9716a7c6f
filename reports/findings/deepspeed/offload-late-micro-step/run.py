"""DeepSpeed, stage 2 with the optimizer in host memory, and stage 3: a gradient that begins late adds an older one.

The gradient of a weight is rank + 1 for each use, divided by the two micro-steps, so that on two ranks plain SGD with
lr 1 must move it by -1.5 in a step if both micro-steps use it, and by -0.75 if one does.
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
BOTH, SECOND = (True, True), (False, True)


class Model(torch.nn.Module):
    """Two weights, each in a partition of its own; the loss of a micro-step may leave the second out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))

    def forward(self, factor: float, uses_block: bool) -> torch.Tensor:
        loss = factor * self.stem.sum()
        return loss + factor * self.block.sum() if uses_block else loss


def train(rank: int, stage: int, offloads: bool, used: list[tuple[bool, bool]]) -> float:
    """How far steps of two micro-steps move the block's weight."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    model = Model()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's SGD
        "zero_optimization": {"stage": stage},
    }
    if offloads:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)
    for step in used:
        for uses_block in step:
            engine.backward(engine(float(rank + 1), uses_block))
            engine.step()
    with deepspeed.zero.GatheredParameters([model.block], enabled=stage == 3):
        return float(model.block[0])


def on_rank(rank: int, folder: str) -> None:
    """Train with and without offload; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = [
        (stage, offloads, used, expected, train(rank, stage, offloads, used))
        for stage in (2, 3)
        for offloads in (False, True)
        for used, expected in (([SECOND], -0.75), ([SECOND, SECOND], -1.5), ([BOTH, SECOND], -2.25))
    ]
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    for stage, offloads, used, expected, moved in found:
        print(f"stage {stage}, offload {offloads}, block used in {used}: expected {expected}, got {moved}")
    return int(any(expected != moved for *_, expected, moved in found))


if __name__ == "__main__":
    sys.exit(main())
