"""Subjects alternate in one process: the names of torch that a subject changes."""

from __future__ import annotations

from contextlib import closing

import torch
import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import run_step, start
from zerobench.model_specs import Gpt
from zerobench.scenario import Scenario

_SHARED = (torch, torch.nn, torch.nn.functional, torch.nn.Module, torch.nn.Linear, torch.Tensor, torch.autograd, dist)
SCENARIO = Scenario(model=Gpt(width=16, layers=1, heads=2, context=16), world=4, steps=1)


def replaced(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[str]:
    """One rank's part: the names of torch that are other objects after a step of the subject, or after its end."""
    subject_type = subjects.load(name)
    before = _found()
    with closing(start(subject_type, scenario, group)) as subject:
        run_step(subject, scenario, 0, dist.get_rank(group))
        now = _found()
    after = _found()
    return [name for name, value in before.items() if not value == now[name] == after[name]]


def _found() -> dict[str, int]:
    return {f"{space.__name__}.{name}": id(value) for space in _SHARED for name, value in vars(space).items()}
