"""FSDP1: with ShardedGradScaler the step of a fused Adam, AdamW or Adagrad raises."""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

OPTIMIZERS = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad


def step_of(rule: type[torch.optim.Optimizer], scaler: torch.amp.GradScaler) -> str:
    """The outcome of a good step of a fused optimizer."""
    module = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = rule(module.parameters(), lr=0.1, fused=True)  # type: ignore[call-arg]
    scaler.scale(module(torch.ones(1, 4)).sum()).backward()
    scaler.unscale_(optimizer)  # as before gradients are clipped
    try:
        scaler.step(optimizer)
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "an update"


def main() -> int:
    """1 if a step raises."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = {
            f"{scaler.__name__}, {rule.__name__}": step_of(rule, scaler(device="cpu", init_scale=2.0))
            for scaler in (torch.amp.GradScaler, ShardedGradScaler)
            for rule in OPTIMIZERS
        }
        dist.destroy_process_group()
    for name, value in found.items():
        print(f"{name}: expected an update, got {value}")
    return int(any(value != "an update" for value in found.values()))


if __name__ == "__main__":
    sys.exit(main())
