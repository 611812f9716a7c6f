"""Reading: a subject's states and its evaluation, copied to the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zerobench.scenario import Read, Scenario
from zerobench.subject import Batch, State, Subject
from zerobench.workload.data import held_out, held_out_in
from zerobench.workload.forwards import casting

#: The states that a recording may hold of every step.
RecordedState = Literal["gradients", "parameters", "model_parameters", "optimizer_state"]
Keep = frozenset[RecordedState]
ALL: Keep = frozenset(("gradients", "parameters", "model_parameters", "optimizer_state"))


def read_at(subject: Subject, scenario: Scenario, step: int, at: int) -> State:
    """The values of the Scenario's reads at this moment, by :func:`labelled`'s names."""
    found: State = {}
    for each in scenario.reads:
        if (each.step, each.at) == (step, at):
            for time in range(each.times):
                found |= labelled(each, time, _read(subject, scenario, each))
    return found


def labelled(read: Read, time: int, values: State) -> State:
    """The values of one reading, each named by the reading and its own name."""
    when = "after the update" if read.at < 0 else f"after {read.at} micro-steps"
    which = f"{read.what.replace('_', ' ')} {when}{', again' * time}"
    return {f"{which}, {name}".removesuffix(", "): value for name, value in values.items()}


def _read(subject: Subject, scenario: Scenario, read: Read) -> State:
    if read.what == "evaluation":
        return {"": _evaluated(subject, scenario, held_out_in(scenario, read.step))}
    if read.what == "optimizer_state":
        return flat({name: to_cpu(state) for name, state in subject.optimizer_state().items()})
    return to_cpu(getattr(subject, read.what)())


def flat(states: Mapping[str, State]) -> State:
    """Optimizer state by ``parameter.key``."""
    return {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}


def evaluation(subject: Subject, scenario: Scenario) -> Tensor:
    """The loss of the held-out batch, on the CPU."""
    return _evaluated(subject, scenario, held_out(scenario))


def _evaluated(subject: Subject, scenario: Scenario, batch: Batch) -> Tensor:
    with casting(scenario):
        return subject.evaluate(batch).detach().cpu()


def to_cpu(state: Mapping[str, Tensor]) -> State:
    """Copies on the CPU that nothing else writes to.

    Raises:
        TypeError: if a value is no tensor, or wraps others, such as a shard of a DTensor.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"expected values by name in a dict, got a {type(state).__name__}")
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}; expected a tensor")
        if is_traceable_wrapper_subclass(tensor):
            expected = "expected a plain tensor of full values, as full_tensor() of a DTensor"
            raise TypeError(f"{name} is a {type(tensor).__name__}; {expected}")
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
