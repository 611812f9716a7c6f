"""The update of one parameter in float64, and the largest rounding error of an engine that computes it in fp32.

An engine's own values before the step and its own gradient go in, so the errors of a single step remain. Notation as
in zerobench/judge/bounds.py. No rule rounds an element more than :data:`ROUNDINGS` times on its way into a result, so
each term of a sum has a relative error of at most gamma_k, and a sum has gamma_k times the sum of the terms' absolute
values. A quotient has the error of its numerator, divided, and its own relative one; if the divisor's is above an
eighth, nothing is required of the element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.judge.bounds import gamma
from zerobench.scenario import Optimizer
from zerobench.subject import State

#: Adam has most, 24: gradient 4 (mean, loss scale, coefficient, clip), decay 2, first moment 3, second moment 4, root,
#: its bias 2, eps, quotient, rate 4, sum and its own rounding 2. A divisor that is off by an eighth makes them 8/7 as
#: large, and the product with the numerator's error 8/7 again.
ROUNDINGS = 32
_SHARE = gamma(ROUNDINGS, torch.float32)


@dataclass(frozen=True)
class Value:
    """A float64 tensor, and the sum of the absolute values of the terms that make it."""

    at: Tensor
    size: Tensor

    def __add__(self, other: Value) -> Value:
        return Value(self.at + other.at, self.size + other.size)

    def __mul__(self, factor: float) -> Value:
        return Value(self.at * factor, self.size * abs(factor) if factor else torch.zeros_like(self.size))

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """An exact value."""
        return cls(tensor.double(), tensor.double().abs())


@dataclass(frozen=True)
class Update:
    """One parameter's values after a step: ``values`` under the states' keys, and the parameter's under ""."""

    values: State
    bounds: State


@dataclass(frozen=True)
class Before:
    """One parameter before a step: its value, its states, its gradient, and the number of this update, from 1."""

    parameter: Value
    states: dict[str, Value]
    gradient: Value
    count: int

    @classmethod
    def of(cls, parameter: Tensor, states: State, gradient: Tensor, count: int, doubt: float = 0.0) -> Before:
        """Exact values, except for a relative error ``doubt`` of the gradient's clipping."""
        exact = Value.of(gradient)
        clipped = Value(exact.at, exact.size * (1 + doubt / _SHARE))
        return cls(Value.of(parameter), {key: Value.of(each) for key, each in states.items()}, clipped, count)


def updated(spec: Optimizer, before: Before) -> Update:
    """The rule's result; ``spec`` has the rate and the decay of the parameter's group."""
    found = _RULES[spec.name](spec, before)
    tiny = torch.finfo(torch.float32).tiny  # of results that underflow
    bounds = {key: _SHARE * value.size + tiny for key, value in found.items()}
    return Update({key: value.at for key, value in found.items()}, bounds)


#: By the states' keys, and the parameter under "".
Result = dict[str, Value]


def _sgd(spec: Optimizer, before: Before) -> Result:
    """In a step without momentum the buffer stays as it is, bit for bit."""
    step = before.gradient + before.parameter * spec.weight_decay
    states = {key: Value(each.at, torch.zeros_like(each.size)) for key, each in before.states.items()}
    if spec.momentum:
        step = before.states["momentum_buffer"] * spec.momentum + step
        states = {"momentum_buffer": step}
    return states | {"": before.parameter + step * -spec.lr}


def _adam(spec: Optimizer, before: Before) -> Result:
    return _adaptive(spec, before, before.gradient + before.parameter * spec.weight_decay, before.parameter)


def _adamw(spec: Optimizer, before: Before) -> Result:
    return _adaptive(spec, before, before.gradient, _decayed(spec, before))


def _adaptive(spec: Optimizer, before: Before, gradient: Value, parameter: Value) -> Result:
    one, two = spec.betas
    first = before.states["exp_avg"] * one + gradient * (1 - one)
    square = Value(gradient.at.square(), gradient.size.square())
    second = before.states["exp_avg_sq"] * two + square * (1 - two)
    root = (second.at / (1 - two**before.count)).sqrt()
    step = _quotient(first, second, root, spec.eps) * (-spec.lr / (1 - one**before.count))
    return {"exp_avg": first, "exp_avg_sq": second, "": parameter + step}


def _adagrad(spec: Optimizer, before: Before) -> Result:
    gradient = before.gradient + before.parameter * spec.weight_decay
    total = before.states["sum"] + Value(gradient.at.square(), gradient.size.square())
    rate = spec.lr / (1 + (before.count - 1) * spec.lr_decay)
    step = _quotient(gradient, total, total.at.sqrt(), spec.eps) * -rate
    return {"sum": total, "": before.parameter + step}


def _lion(spec: Optimizer, before: Before) -> Result:
    """If the roundings can turn the sign, the step may go either way, or nowhere; a sum of zeros has no roundings."""
    one, two = spec.betas
    direction = before.states["exp_avg"] * one + before.gradient * (1 - one)
    doubtful = (direction.at.abs() <= _SHARE * direction.size) & (direction.size > 0)
    first = before.states["exp_avg"] * two + before.gradient * (1 - two)
    sign = direction.at.sign()
    step = Value(sign, sign.abs() + doubtful * (2 / _SHARE)) * -spec.lr
    return {"exp_avg": first, "": _decayed(spec, before) + step}


def _quotient(numerator: Value, squares: Value, root: Tensor, eps: float) -> Value:
    """A quotient by eps and the root of a sum of squares, which has half of the sum's relative error."""
    divisor = root + eps
    relative = (squares.size / squares.at).nan_to_num(nan=1.0) * root / divisor
    size = numerator.size / divisor + (numerator.at / divisor).abs() * relative
    return Value(numerator.at / divisor, torch.where(_SHARE * relative > 0.25, torch.inf, size))


def _decayed(spec: Optimizer, before: Before) -> Value:
    """The parameter after decoupled weight decay."""
    return before.parameter + before.parameter * (-spec.lr * spec.weight_decay)


_RULES: dict[str, Callable[[Optimizer, Before], Result]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adamw,
    "adagrad": _adagrad,
    "lion": _lion,
}
