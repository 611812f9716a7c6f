"""ClientRule: the step of a client's own optimizer, which the engine gives one piece of a parameter at a time."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zerobench.engine.rules.constructed import FirstStates, made
from zerobench.engine.rules.rule import Group, TorchRule

#: Elements. On a CPU, torch rounds the elements after the last full vector in another way, and cuts a long tensor
#: between threads. A piece of whole vectors that one thread steps has one rounding.
_VECTORS = 64
_ONE_THREAD = 1 << 14


@dataclass(frozen=True, eq=False)
class ClientValues:
    """The options of a group by the client's names, and a parameter's step, which counts from 1."""

    options: Mapping[str, Any]
    step: int


class ClientRule(TorchRule[ClientValues]):
    """The step of a torch optimizer that the engine has no rule for.

    The engine keeps the states that have a value for each element, and those that have one value for the parameter as
    this value for each element. It sets the states that count steps from the parameter's own count.
    :func:`zerobench.engine.rules.elementwise.rule_of` makes the rule if a trial shows that the optimizer needs nothing
    else.

    Args:
        client: the optimizer; a copy of it, with its attributes but without its hooks, steps each piece.
        names: the states with one fp32 value for each element, or for the parameter.
        scalars: those of them with one value for the parameter.
        counts: the zeros of the states that count steps.
        first: the states that the optimizer has before its first step.
    """

    def __init__(
        self,
        client: torch.optim.Optimizer,
        names: tuple[str, ...],
        scalars: frozenset[str],
        counts: Mapping[str, Tensor | float],
        first: FirstStates,
    ) -> None:
        self._client, self._names, self._scalars, self._counts, self._first = client, names, scalars, counts, first

    @property
    def name(self) -> str:
        """The module and name of the client's class."""
        client = type(self._client)
        return f"{client.__module__}.{client.__qualname__}"

    def is_fresh(self, client: torch.optim.Optimizer) -> bool:
        """Decided by the counts if it has any. Otherwise a stepped one has states, and no first ones: those of several
        elements differ."""
        states = [state for _, state in client.state.items()]
        if self._counts:
            return not any(state.get(name) for state in states for name in self._counts)
        return bool(self._first) or not states

    def state_names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return self._names

    def values(self, group: Group, step: int) -> ClientValues:
        return ClientValues(options_of(group), step)

    def step(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: ClientValues) -> Sequence[Tensor]:
        pieces = zip(*(torch.split(each, _ONE_THREAD) for each in (p, g, *states)), strict=True)
        stepped = [self._step_piece(p, g, kept, values) for p, g, *kept in pieces]
        return [torch.cat(parts) for parts in zip(*stepped, strict=True)]

    def _step_piece(self, p: Tensor, g: Tensor, states: Sequence[Tensor], values: ClientValues) -> list[Tensor]:
        parameter = nn.Parameter(_whole_vectors(p))
        parameter.grad = _whole_vectors(g)
        kept = dict(zip(self._names, map(_whole_vectors, states), strict=True))
        if values.step == 1:
            before = made(self._first, parameter)
        else:
            single = {name: kept[name][0] for name in self._scalars}
            before = {**kept, **single, **self._counted(values, p.device)}
        stepper = stepper_of(self._client, parameter, values.options, before)
        step_of(stepper)
        kept |= present(stepper.state[parameter])
        stepped = (parameter, *(kept[name] for name in self._names))
        return [each.detach().expand_as(parameter)[: p.numel()] for each in stepped]

    def _counted(self, values: ClientValues, device: torch.device) -> dict[str, Any]:
        """The counts before this step; torch's fused steps read theirs on the parameter's device."""
        counted = {name: zero + (values.step - 1) for name, zero in self._counts.items()}
        if not values.options.get("fused"):
            return counted
        return {name: torch.as_tensor(value, device=device) for name, value in counted.items()}


def options_of(group: Group) -> dict[str, Any]:
    """The group without its parameters."""
    return {name: value for name, value in group.items() if name != "params"}


def present(state: Mapping[str, Any]) -> dict[str, Any]:
    """The states that are not None; torch's SGD without momentum has a momentum buffer that is None."""
    return {name: value for name, value in state.items() if value is not None}


def stepper_of(
    client: torch.optim.Optimizer, parameter: nn.Parameter, options: Mapping[str, Any], state: dict[str, Any]
) -> torch.optim.Optimizer:
    """A copy of the client over one parameter, which has this state."""
    stepper: torch.optim.Optimizer = object.__new__(type(client))
    stepper.__dict__.update(client.__dict__)
    stepper.__dict__.pop("step", None)  # a scheduler's wrapper, which counts the client's steps
    stepper.param_groups = [{**options, "params": [parameter]}]
    stepper.state = defaultdict(dict)
    if state:
        stepper.state[parameter] = state
    stepper._optimizer_step_pre_hooks = OrderedDict()
    stepper._optimizer_step_post_hooks = OrderedDict()
    return stepper


def step_of(stepper: torch.optim.Optimizer) -> None:
    """One step of the copy."""
    with torch.no_grad():
        stepper.step()


def _whole_vectors(piece: Tensor) -> Tensor:
    """A copy of [n] elements, with zeros up to the next whole vector."""
    return functional.pad(piece, (0, -piece.numel() % _VECTORS)).clone()
