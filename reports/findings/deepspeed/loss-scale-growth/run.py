"""DeepSpeed, fp16, dynamic loss scale: the step on which the scale doubles applies half of the gradient.

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

RANKS, STEPS = 2, 4


class OneWeight(torch.nn.Module):
    """The loss is the sum of the weight, so that its gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self) -> torch.Tensor:
        return self.weight.float().sum()


def train(stage: int) -> list[list[float]]:
    """By step: how far the weight moved, the norm that DeepSpeed reports, and the loss scale of the backward."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference; it would be compiled first
    from deepspeed.accelerator import get_accelerator

    if not get_accelerator().is_fp16_supported():
        get_accelerator().is_fp16_supported = lambda: True  # on this CPU only a flag: all arithmetic is there
    model = OneWeight()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 3, "loss_scale_window": 2},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    found = []
    before = 0.0
    for _ in range(STEPS):
        scale = engine.optimizer.loss_scale
        engine.backward(engine())
        engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            after = float(model.weight[0])
        found.append([after - before, float(engine.get_global_grad_norm()), float(scale)])
        before = after
    return found


def on_rank(rank: int, folder: str) -> None:
    """Train at stages 1 to 3; rank 0 tells."""
    warnings.simplefilter("ignore")
    os.environ |= {"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found = {stage: train(stage) for stage in (1, 2, 3)}
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found), encoding="utf-8")


def main() -> int:
    """Print the moves; 1 if one of them is not -1."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        found = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    print(f"expected in every step: the weight moves by -1; the norm is {8**0.5:.4f}")
    for stage, steps in found.items():
        for step, (move, norm, scale) in enumerate(steps):
            print(f"stage {stage} step {step}: moved by {move:g}, norm {norm:.4f}, loss scale {scale:g}")
    return int(any(move != -1 for steps in found.values() for move, *_ in steps))


if __name__ == "__main__":
    sys.exit(main())
