"""Stepping: the micro-steps and the update of a step, with the client's calls before and between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zerobench.driver.reading import Keep, read_at, to_cpu
from zerobench.recording import Step
from zerobench.scenario import Scenario, scaled
from zerobench.subject import Batch, Outcome, State, Subject
from zerobench.workload import changes
from zerobench.workload.data import leaf, seed_leaf
from zerobench.workload.groups import scheduled_values


def run_step(
    subject: Subject,
    scenario: Scenario,
    index: int,
    rank: int,
    keep: Keep = frozenset(),
    mark: Callable[[str], None] = lambda phase: None,
    batches: Sequence[Batch] | None = None,
) -> Step:
    """Step ``index`` on ``rank``: its micro-steps and the update, with the Scenario's reads, then the readings.

    To interleave subjects or to meter a step, call this for each; a process waits for the device only at its end.
    ``mark`` is called after each micro-step's backward and after the optimizer. ``batches`` are those of
    :func:`draw_batches`, which a caller that times the step draws before it.

    Raises:
        ValueError: if a loss has a dimension, or a graph.
        TypeError: if a tensor of the full values is not plain, or if the subject returns something else.
    """
    losses: list[Tensor] = []
    progress = counted(subject, " before the step")
    prepare(subject, scenario, index)
    reads = read_at(subject, scenario, index, 0)
    for micro_step, batch in enumerate(batches or draw_batches(scenario, index, rank)):
        seed_leaf(scenario, index, micro_step * scenario.world + rank)
        losses.append(_scalar(subject.micro_step(batch), subject.name))
        mark("backward")
        reads |= read_at(subject, scenario, index, micro_step + 1)
    finish(subject, scenario, index)
    gradients = to_cpu(subject.gradients()) if "gradients" in keep else {}
    outcome = _outcome(subject.step(), subject.name)
    mark("optimizer")
    step = Step([loss.cpu() for loss in losses], outcome.norm, outcome.skipped, outcome.loss_scale, gradients)
    step.reads = reads | read_at(subject, scenario, index, -1)
    step.progress = progress | counted(subject) | in_force(subject, scenario)
    _record_states(step, subject, keep)
    return step


def _scalar(loss: Tensor, name: str) -> Tensor:
    if not isinstance(loss, Tensor):
        raise TypeError(f"micro_step of {name} returned {_type(loss)}; expected the detached loss, a tensor")
    if loss.dim():
        raise ValueError(
            f"micro_step of {name} returned a loss of shape {list(loss.shape)}; expected a 0-dimensional tensor, the "
            "mean loss of the leaf"
        )
    if loss.requires_grad:
        raise ValueError(
            f"micro_step of {name} returned a loss with its graph, which keeps the leaf's activations as long as the "
            "client keeps the loss; expected a detached one"
        )
    return loss


def _outcome(outcome: Outcome, name: str) -> Outcome:
    if not isinstance(outcome, Outcome):
        raise TypeError(f"step of {name} returned {_type(outcome)}; expected a zerobench.subject.Outcome")
    return outcome


def _type(given: object) -> str:
    return "None" if given is None else f"a value of type {type(given).__name__}"


def _record_states(step: Step, subject: Subject, keep: Keep) -> None:
    """Read the states in ``keep`` after the update, in a fixed order; collectives."""
    if "parameters" in keep:
        step.parameters = to_cpu(subject.parameters())
    if "model_parameters" in keep:
        step.model_parameters = to_cpu(subject.model_parameters())
    if "optimizer_state" in keep:
        step.optimizer_state = {name: to_cpu(state) for name, state in subject.optimizer_state().items()}


def counted(subject: Subject, when: str = "") -> State:
    """The subject's counters, each named by itself and the moment."""
    return {f"{name}{when}": torch.tensor(count) for name, count in (subject.counters() or {}).items()}


def in_force(subject: Subject, scenario: Scenario) -> State:
    """The scheduled hyperparameters of the subject's parameter groups, which a client reads as the engine does."""
    return scheduled_values(scenario, subject.param_groups()) if scenario.schedules else {}


def prepare(subject: Subject, scenario: Scenario, step: int) -> None:
    """Make the client's calls before ``step``: it sets hyperparameters, parameters, which of these train, and the
    number of micro-steps."""
    if not scenario.schedules_late(step):
        set_hyperparameters(subject, scenario, step)
    if scenario.shortens:
        subject.set_micro_steps(scenario.micro_steps_of(step))
    if step in scenario.edits and not scenario.edits_before_save(step):
        values = changes.edited(scenario, step)
        for names in calls_of(scenario, list(values)):
            subject.set_parameters({name: values[name] for name in names})
    changes.let_train(subject.resting, scenario, step)


def finish(subject: Subject, scenario: Scenario, step: int) -> None:
    """Make the client's calls between the last backward of ``step`` and its update: it sets hyperparameters, and edits
    gradients."""
    if scenario.schedules_late(step):
        set_hyperparameters(subject, scenario, step)
    edit_gradients(subject, scenario, step)


def edit_gradients(subject: Subject, scenario: Scenario, step: int) -> None:
    """The client's edit of the gradients of ``step``, if the Scenario has one."""
    if scenario.edits_gradients(step):
        for names in calls_of(scenario, changes.without_gradient(scenario, step)):
            subject.zero_gradients(names)


def calls_of(scenario: Scenario, names: list[str]) -> list[list[str]]:
    """The names of each call by which the client edits these: of all, or of two halves one after the other."""
    half = len(names) // 2 if scenario.calls_apart else 0
    return [each for each in (names[:half], names[half:]) if each] or [names]


def set_hyperparameters(subject: Subject, scenario: Scenario, step: int) -> None:
    """Set the hyperparameters that change in ``step``, as a client's schedules do.

    A resumed subject has the others from the state that it loaded.
    """
    changes = [changed_factors(scenario, step, group) for group in range(len(subject.initial_groups))]
    if any(changes):
        for group, initial, changed in zip(subject.param_groups(), subject.initial_groups, changes, strict=True):
            values = scaled(initial, changed)
            group.update(_with_integers(values) if scenario.sets_integers else values)


def _with_integers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, of which whole numbers are integers, as a client writes 0."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in values.items()
    }


def changed_factors(scenario: Scenario, step: int, group: int) -> dict[str, float]:
    """The factors of a group's hyperparameters that are others than in the step before, and not the engine's to set."""
    before, now = scenario.factors(step - 1, group), scenario.factors(step, group)
    kept = {"lr"} if scenario.engine_schedules else set()
    return {name: factor for name, factor in now.items() if factor != before[name] and name not in kept}


def run_steps(subject: Subject, scenario: Scenario, first: int, rank: int, batches: Sequence[Iterable[Batch]]) -> None:
    """Train a step on each element of ``batches``, from step ``first`` on, and read nothing between them."""
    for index, step in enumerate(batches, start=first):
        prepare(subject, scenario, index)
        for micro_step, batch in enumerate(step):
            seed_leaf(scenario, index, micro_step * scenario.world + rank)
            subject.micro_step(batch)
        finish(subject, scenario, index)
        subject.advance()


def draw_batches(scenario: Scenario, index: int, rank: int) -> list[Batch]:
    """The batches of step ``index`` on ``rank``, one for each micro-step, on the Scenario's device."""
    return [leaf(scenario, index, a * scenario.world + rank) for a in range(scenario.micro_steps_of(index))]
