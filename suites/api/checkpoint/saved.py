"""A small engine that saves checkpoints, for tests that spoil them; also a program that is killed while it saves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import zerobench
from zerobench.ranks import Pool


class Model(nn.Module):
    """Two layers that train, one that is frozen, and a buffer that training changes: a save has that of its moment."""

    scale: Tensor

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale += 1
        out: Tensor = self.body(self.frozen(x)).square().mean()
        return out


def engine(
    seed: int = 0, model: nn.Module | None = None, group: Any = None, schedule: Any = None, **config: Any
) -> zerobench.Engine:
    """An engine of stage 2 in bf16, unless ``config`` says otherwise; its values depend on the seed."""
    torch.manual_seed(seed)
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": 2, "chunk_size": 32},
    }
    given = {"lr_scheduler": schedule, "process_group": group}
    return zerobench.initialize(model or Model(), {**settings, **config}, **given)[0]


def train(trained: zerobench.Engine, steps: int = 1) -> None:
    """Steps on data of this rank's global generator."""
    for _ in range(steps):
        dtype = next(trained.module.parameters()).dtype
        trained.backward(trained(torch.randn(4, 8).to(dtype)))
        trained.step()


def states(of: zerobench.Engine) -> dict[str, Any]:
    """Everything that a load may change, as values to compare."""
    with zerobench.GatheredParameters(of.module):
        found: dict[str, Any] = {name: each.tolist() for name, each in of.module.state_dict().items()}
    for name, parameter in of.module.named_parameters():
        if parameter.requires_grad:
            full = [zerobench.safe_get_full_fp32_param(parameter)]
            full += [zerobench.safe_get_full_optimizer_state(parameter, key) for key in of.optimizer.state_names]
            found[f"states of {name}"] = [each.tolist() for each in full if each is not None]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in of.optimizer.param_groups]
    counters = (of.global_steps, of.micro_steps, of.skipped_steps, list(of.stepper.steps), of.scaler.state())
    schedule = None if of.lr_scheduler is None else of.lr_scheduler.state_dict()
    return {**found, "other": (groups, counters, schedule, torch.get_rng_state().tolist())}


def save_twice(directory: Path) -> zerobench.Engine:
    """An engine after two steps, which has saved itself after each."""
    saved = engine()
    for _ in range(2):
        train(saved)
        saved.save_checkpoint(directory)
    return saved


def save_for_ever(group: dist.ProcessGroup | None, directory: Path) -> None:
    """Save after each step under a few tags in turn, so that saves replace older ones.

    A file beside the directory has the number of the process as its name.
    """
    (directory.parent / f"{os.getpid()}.pid").touch()
    running = engine(group=group)
    while True:
        train(running)
        running.save_checkpoint(directory, tag=f"step{running.global_steps % 3}")


if __name__ == "__main__":
    if sys.argv[2] == "1":
        save_for_ever(None, Path(sys.argv[1]))
    with Pool(int(sys.argv[2])) as ranks:
        ranks.run(save_for_ever, Path(sys.argv[1]))
