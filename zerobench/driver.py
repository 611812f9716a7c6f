"""Drive a subject through a Scenario on one rank and record what happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import State, Subject
from zerobench.workload import models
from zerobench.workload.data import held_out, leaf, seed_leaf

#: The states that a recording may hold of every step.
RecordedState = Literal["gradients", "parameters", "model_parameters", "optimizer_state"]
Keep = frozenset[RecordedState]
ALL: Keep = frozenset(("gradients", "parameters", "model_parameters", "optimizer_state"))


def drive(
    subject_type: type[Subject],
    scenario: Scenario,
    group: dist.ProcessGroup,
    keep: Keep = frozenset(),
    *,
    last: Keep = frozenset(),
    evaluate: bool = False,
) -> Trajectory:
    """Train a Scenario from start to end; called by every rank of ``group``, each of which gets its own recording.

    ``keep`` is recorded of every step, ``last`` of the last one as well: reading costs more than training.

    The subject is closed in any case. Whether it offers the Scenario at all is the caller's question.

    Raises:
        UsageError: the Scenario's model or data cannot be.
    """
    rank = dist.get_rank(group)
    with closing(start(subject_type, scenario, group)) as subject:
        kept = [keep] * (scenario.steps - 1) + [keep | last]
        steps = [run_step(subject, scenario, index, rank, parts) for index, parts in enumerate(kept)]
        evaluation = subject.evaluate(held_out(scenario)).detach().cpu() if evaluate else None
    return Trajectory(subject_type.name, scenario, rank, steps, evaluation)


def start(subject_type: type[Subject], scenario: Scenario, group: dist.ProcessGroup) -> Subject:
    """Build the Scenario's model and put it into a subject; the caller closes it."""
    return subject_type(model_for(subject_type, scenario), scenario, group)


def model_for(subject_type: type[Subject], scenario: Scenario) -> nn.Module:
    """The Scenario's model as the subject takes it: on the device, or on the CPU where it moves it itself."""
    model = models.build(scenario)
    return model if subject_type.moves else model.to(scenario.device)


def run_step(
    subject: Subject,
    scenario: Scenario,
    index: int,
    rank: int,
    keep: Keep = frozenset(),
    mark: Callable[[str], None] = lambda phase: None,
) -> Step:
    """Step ``index`` on ``rank``: the A micro-steps and the update, then the readings.

    To interleave subjects or to meter a step, call this for each; a process waits for the device only at its end.
    ``mark`` is told when a micro-step's backward and when the optimizer have returned.

    Raises:
        ValueError: a loss with a dimension.
        TypeError: a tensor that is not plain where full values are read.
    """
    losses: list[Tensor] = []
    for micro_step in range(scenario.accumulation):
        at = micro_step * scenario.world + rank
        seed_leaf(scenario, index, at)
        losses.append(_scalar(subject.micro_step(leaf(scenario, index, at)), subject.name))
        mark("backward")
    gradients = to_cpu(subject.gradients()) if "gradients" in keep else {}
    outcome = subject.step()
    mark("optimizer")
    step = Step([loss.cpu() for loss in losses], outcome.norm, outcome.skipped, outcome.loss_scale, gradients)
    if "parameters" in keep:
        step.parameters = to_cpu(subject.parameters())
    if "model_parameters" in keep:
        step.model_parameters = to_cpu(subject.model_parameters())
    if "optimizer_state" in keep:
        step.optimizer_state = {name: to_cpu(state) for name, state in subject.optimizer_state().items()}
    return step


def _scalar(loss: Tensor, name: str) -> Tensor:
    if loss.dim():
        raise ValueError(
            f"micro_step of {name} returned a loss of shape {list(loss.shape)}; expected a 0-dimensional tensor, the "
            "mean loss of the leaf"
        )
    return loss


def to_cpu(state: Mapping[str, Tensor]) -> State:
    """Copies on the CPU that nothing else writes to.

    Raises:
        TypeError: a tensor that wraps others, such as a shard of a DTensor.
    """
    for name, tensor in state.items():
        if is_traceable_wrapper_subclass(tensor):
            expected = "expected a plain tensor of full values, as full_tensor() of a DTensor"
            raise TypeError(f"{name} is a {type(tensor).__name__}; {expected}")
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
