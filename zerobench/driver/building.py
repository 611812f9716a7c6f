"""Building: a Scenario's model in a subject."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from zerobench.errors import UsageError
from zerobench.scenario import Scenario
from zerobench.subject import Subject
from zerobench.workload import changes, models


def start(subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup) -> Subject:
    """Build the Scenario's model and put it into a subject; the caller closes it."""
    return wrap(model_for(subject_type, scenario, dist.get_rank(group)), subject_type, scenario, group)


def wrap(model: nn.Module, subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup) -> Subject:
    """Put a model into a subject; the caller closes it.

    torch keeps its number of threads, which decides the order in which backward adds: Accelerate sets another one.

    Raises:
        UsageError: the Scenario needs a method that the subject does not have.
    """
    if reason := subject_type.lacks(scenario):
        raise UsageError(reason)
    threads = torch.get_num_threads()
    try:
        subject = subject_type(model, scenario, group)
    finally:
        torch.set_num_threads(threads)
    if scenario.schedules:
        subject.initial_groups = [
            {name: value for name, value in each.items() if name != "params"} for each in subject.param_groups()
        ]
    subject.resting = changes.resting(model, scenario)
    return subject


def model_for(subject_type: type[Subject], scenario: Scenario, rank: int, loaded: bool = False) -> nn.Module:
    """The Scenario's model as the subject takes it: on the device, or on the CPU if the subject moves it itself.

    ``loaded`` says whether the subject will load a state.
    """
    model = models.build(scenario.but(seed=scenario.seed + rank) if scenario.ranks_differ else scenario)
    if scenario.ranks_differ and subject_type.takes_buffers_of_rank_0:
        _change_buffers(model, rank)
    if not scenario.freezes(loaded):
        model.requires_grad_(True)
    return model if subject_type.moves else model.to(scenario.device)


def _change_buffers(model: nn.Module, rank: int) -> None:
    """Give each buffer other values on every other rank than rank 0: a model's buffers do not depend on its seed."""
    for buffer in model.buffers():
        buffer.add_(rank)
