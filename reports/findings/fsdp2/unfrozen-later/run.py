"""FSDP2: the backward raises if all parameters of a group were frozen in the first forward and are trained later.

The ranks' gradients are 1 and 1/512, whose mean is 0.5009765625; bf16 has 0.5 for it. With fp32 parameters and a
reduction in bf16, nothing is raised, and the group is reduced in fp32.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

RANKS = 2
#: The mean gradient with each policy.
EXPECTED = {
    "bf16, reduced in fp32": (MixedPrecisionPolicy(torch.bfloat16, torch.float32), 0.5009765625),
    "fp32, reduced in bf16": (MixedPrecisionPolicy(None, torch.bfloat16), 0.5),
}


class Model(torch.nn.Module):
    """The loss is the sum of two weights, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.first * factor).sum() + (self.second * factor).sum()


def train(policy: MixedPrecisionPolicy, frozen: tuple[str, ...], factor: float) -> list[str]:
    """The gradients of both weights in a step after one in which some are frozen; or the exception."""
    model = Model()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    fully_shard(model, mp_policy=policy)
    loss = model(factor)
    if loss.requires_grad:
        loss.backward()
    model.requires_grad_(True).zero_grad()
    try:
        model(factor).backward()
    except (RuntimeError, AssertionError) as error:
        return [f"{type(error).__name__}: {str(error).partition('. ')[0]}"]
    grads = [p.grad for p in model.parameters()]
    return [str(float(grad.full_tensor()[0])) if isinstance(grad, DTensor) else str(grad) for grad in grads]


def on_rank(rank: int, folder: str) -> None:
    """With no weight frozen at first, one, and both; rank 0 tells."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    for name, (policy, expected) in EXPECTED.items():
        for frozen in ((), ("second",), ("first", "second")):
            got = train(policy, frozen, (1.0, 1 / 512)[rank])
            if rank == 0:
                print(f"{name}, frozen at first: {', '.join(frozen) or 'none'}: expected {expected} twice, got {got}")
                if got != [str(expected)] * 2:
                    Path(folder, "wrong").touch()
    dist.destroy_process_group()


def main() -> int:
    """1 if a gradient is wrong."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_rank, (folder,), nprocs=RANKS)
        return int(Path(folder, "wrong").exists())


if __name__ == "__main__":
    sys.exit(main())
