"""A trial: whether the engine may step an optimizer in pieces, and which states the optimizer keeps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.engine.errors import ConfigError
from zerobench.engine.rules.client import ClientRule, options_of, present, step_of, stepper_of
from zerobench.engine.rules.constructed import FirstStates, first_states, made
from zerobench.engine.rules.rule import Group

#: Of a parameter in the trial. All have 256 elements: whole vectors, so that torch has one rounding.
_SHAPES = ((256,), (16, 16), (4, 4, 4, 4))
_ELEMENTWISE, _SCALAR = "a value for each element", "a value for the parameter"
_CUTS = (1, 6, 57, 64, 128)
_STEPS = 12
#: A step of this rate changes every element.
_RATE = 2.0**-6


def rule_of(client: torch.optim.Optimizer) -> ClientRule:
    """The rule of an optimizer that the engine has no rule for.

    The trial steps small parameters of one to four dimensions, with the options of each group. It compares the
    optimizer on a whole parameter with the rule on pieces of it, bit for bit.

    Raises:
        ConfigError: the step of an element depends on other elements, or on more than the states with a value for
            each element or for the parameter and the count of steps, or the optimizer cannot step in the trial.
    """
    first = _first_states(client)
    options = [_in_trial(group) for group in client.param_groups]
    found = {name: kind for each in options for name, kind in _kinds(client, each, first).items()}
    rule = ClientRule(
        client,
        tuple(name for name, kind in found.items() if isinstance(kind, str)),
        frozenset(name for name, kind in found.items() if kind == _SCALAR),
        {name: zero for name, zero in found.items() if not isinstance(zero, str)},
        first,
    )
    for each in options:
        for shape in _SHAPES:
            _compare(rule, client, each, shape, first)
    return rule


def _first_states(client: torch.optim.Optimizer) -> FirstStates:
    try:
        return first_states(client)
    except ValueError as error:
        raise _refusal(client, str(error)) from None


def _in_trial(group: Group) -> dict[str, Any]:
    """The group's options with a rate that is not 0, as it may be before a scheduler's first step."""
    options = options_of(group)
    return {**options, "lr": _RATE} if "lr" in options else options


def _kinds(client: torch.optim.Optimizer, options: dict[str, Any], begin: FirstStates) -> dict[str, Any]:
    """The kind of each state of a vector after two steps: one of two kinds of values, or a count, by its zero."""
    parameter = _parameter((256,))
    stepper = stepper_of(client, parameter, options, made(begin, parameter))
    _step(client, stepper, parameter, 1)
    first = copy.deepcopy(present(stepper.state[parameter]))
    _step(client, stepper, parameter, 2)
    return {name: _kind(client, name, first.get(name), now) for name, now in present(stepper.state[parameter]).items()}


def _kind(client: torch.optim.Optimizer, name: str, first: Any, second: Any) -> Any:
    if isinstance(second, Tensor) and second.dtype == torch.float32 and second.shape == (256,):
        return _ELEMENTWISE
    if _is_number(first) and _is_number(second) and bool(first == 1) and bool(second == 2):
        return first - 1
    if isinstance(second, Tensor) and second.dtype == torch.float32 and second.numel() == 1:
        return _SCALAR
    raise _refusal(client, f"its state {name!r} has no fp32 value for each element or the parameter, nor counts steps")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Tensor) and torch.as_tensor(value).numel() == 1


def _compare(
    rule: ClientRule,
    client: torch.optim.Optimizer,
    options: dict[str, Any],
    shape: tuple[int, ...],
    first: FirstStates,
) -> None:
    """Hold the rule on pieces to the optimizer on the whole parameter.

    Raises:
        ConfigError: they differ, or the optimizer moves nothing.
    """
    whole, begin = _parameter(shape), _parameter(shape)
    flat = [begin.detach().flatten(), *(torch.zeros(256) for _ in rule.state_names([]))]
    pieces = [list(parts) for parts in zip(*(torch.tensor_split(each, _CUTS) for each in flat), strict=True)]
    stepper = stepper_of(client, whole, options, made(first, whole))
    unused = torch.zeros(256)  # a state that the optimizer keeps with the options of another group alone
    for step in range(1, _STEPS + 1):
        gradients = torch.tensor_split(_step(client, stepper, whole, step), _CUTS)
        values = rule.values(options, step)
        pieces = [list(rule.step(p, g, s, values)) for (p, *s), g in zip(pieces, gradients, strict=True)]
        kept = present(stepper.state[whole])
        expected = [whole, *(kept.get(name, unused) for name in rule.state_names([]))]
        if not all(map(_equal, zip(*pieces, strict=True), expected)):
            raise _refusal(client, "on a part of a parameter it makes another step than on the whole parameter")
    if torch.equal(whole, begin):
        raise _refusal(client, f"it moves no parameter in {_STEPS} steps")


def _equal(pieces: Sequence[Tensor], whole: Tensor) -> bool:
    """Whether the pieces are the elements of the whole, or each element is the one value that the whole is."""
    flat = whole.detach().flatten()
    return torch.equal(torch.cat(list(pieces)), flat.expand(256))


def _step(client: torch.optim.Optimizer, stepper: torch.optim.Optimizer, parameter: nn.Parameter, step: int) -> Tensor:
    """Step the parameter by a gradient of its own for each step, and return the gradient as a vector.

    Raises:
        ConfigError: the optimizer raises.
    """
    parameter.grad = _numbers(parameter.shape, seed=step)
    gradient = parameter.grad.flatten().clone()
    try:
        step_of(stepper)
    except Exception as error:
        shape = list(parameter.shape)
        raise _refusal(client, f"its step() of a parameter of shape {shape} raises {error!r}") from error
    return gradient


def _parameter(shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(_numbers(shape, seed=0))


def _numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    """Normal numbers that leave the generators of the job as they are."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _refusal(client: torch.optim.Optimizer, reason: str) -> ConfigError:
    return ConfigError(
        f"optimizer {type(client).__name__} is not offered: {reason}; ZeRO steps each rank's shard by itself, so give "
        "an optimizer whose step is elementwise"
    )
