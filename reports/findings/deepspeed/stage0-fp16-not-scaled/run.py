"""DeepSpeed stage 0, fp16: the loss is not multiplied by the loss scale, but the gradients are divided by it.

The model is one weight whose gradient is always 1; plain SGD with lr 1 must move it by -1 in every step.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


class OneWeight(torch.nn.Module):
    """The loss is the sum of the weight, so that its gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.float().sum()


def train(scale: float) -> list[float]:
    """How far the weight moves in one step, and the norm that DeepSpeed reports."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    if not get_accelerator().is_fp16_supported():
        get_accelerator().is_fp16_supported = lambda: True  # on this CPU only a flag: all arithmetic is there
    model = OneWeight()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 0},
        "fp16": {"enabled": True, "loss_scale": scale},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine())
    engine.step()
    return [float(model.weight[0]), float(engine.get_global_grad_norm())]


def on_rank(rank: int, folder: str) -> None:
    """Train with three static scales; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {scale: train(scale) for scale in (1.0, 8.0, 1024.0)}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is not -1."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    for scale, (move, norm) in found.items():
        print(f"loss scale {scale}: expected to move by -1, moved by {move:g} (reported norm {norm:.4f})")
    return int(any(move != -1 for move, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
