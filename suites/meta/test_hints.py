"""Each hint of a failure appears if it is right, and not if a near miss makes it wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from zerobench.judge.judgement import across_ranks
from zerobench.judge.parts import ALL_PARTS
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Optimizer, Scenario

Change = Callable[[list[Trajectory]], None]
_BASE = Scenario(world=3, accumulation=5, chunk=32)
_BF16 = _BASE.but(accumulation=1, dtype="bf16")
_GROUPS = _BASE.but(optimizer=Optimizer(second_group=True))


def _recorded(scenario: Scenario, rank: int, subject: str) -> Trajectory:
    """Two steps, made up, with every state; ``a`` and ``b`` are matrices, ``c`` and ``d`` vectors, ``one`` a scalar."""
    generator = torch.Generator().manual_seed(0)
    steps = []
    for _ in range(2):
        a, b, c, d = torch.randn(4, 64, generator=generator)
        values = {"a": a.view(8, 8), "b": b.view(8, 8), "c": c, "d": d, "one": torch.tensor(3.0)}
        step = Step([torch.tensor(1.0)] * scenario.accumulation, 3.0, False, 8.0, values)
        step.parameters = {name: value + 1 for name, value in values.items()}
        step.model_parameters = {**step.parameters, "frozen": torch.ones(4)}
        step.optimizer_state = {name: {"exp_avg": value - 1} for name, value in values.items()}
        steps.append(step)
    return Trajectory(subject, scenario, rank, steps, torch.tensor(1.0))


def _hints(change: Change, scenario: Scenario = _BASE, expected_change: Change = lambda ranks: None) -> str:
    """The hints at the first difference of all ranks, after changes of the recordings."""
    got, expected = ([_recorded(scenario, rank, name) for rank in range(scenario.world)] for name in ("x", "y"))
    change(got)
    expected_change(expected)
    found = across_ranks(got, expected, ALL_PARTS)
    assert found
    return "\n".join(found.hints)


def _all(part: str, name: str, new: Callable[[torch.Tensor], torch.Tensor], step: int = 0) -> Change:
    """Replace a value on every rank."""

    def change(ranks: list[Trajectory]) -> None:
        for each in ranks:
            values: dict[str, Any] = getattr(each.steps[step], part)
            key = "exp_avg" if part == "optimizer_state" else name
            values = values[name] if part == "optimizer_state" else values
            values[key] = new(values[key])

    return change


def _set(ranks: int = 3, step: int = 0, **values: Any) -> Change:
    """Set fields of a step on the last ranks."""

    def change(recorded: list[Trajectory]) -> None:
        for each in recorded[-ranks:]:
            for field, value in values.items():
                setattr(each.steps[step], field, value)

    return change


def _both(*changes: Change) -> Change:
    def change(ranks: list[Trajectory]) -> None:
        for each in changes:
            each(ranks)

    return change


def _inactive(*names: str) -> Change:
    """No leaf of the first step uses these parameters."""

    def change(ranks: list[Trajectory]) -> None:
        for each, name in itertools.product(ranks, names):
            del each.steps[0].gradients[name]

    return change


def _norms(*norms: float) -> Change:
    """The first step's norm of each rank."""

    def change(ranks: list[Trajectory]) -> None:
        for each, norm in zip(ranks, norms, strict=True):
            each.steps[0].norm = norm

    return change


def _elements(where: slice, by: float = 1.0) -> Callable[[torch.Tensor], torch.Tensor]:
    """Change some elements of a tensor of dimension one."""

    def new(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[where] += by
        return value

    return new


def _least(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Change the element that is nearest to zero."""
    return lambda value: value + by * (value.abs() == value.abs().min())


def _rounded(value: torch.Tensor) -> torch.Tensor:
    return value.bfloat16().float()


def _multiple(factor: float, name: str = "a", part: str = "gradients") -> Change:
    return _all(part, name, lambda value: value * factor)


def _only(value: torch.Tensor) -> torch.Tensor:
    """The same with one element that is not zero."""
    return torch.where(torch.arange(64).view(8, 8) == 9, value, 0.0)


_NAN = float("nan")
#: The parameter ``a`` after the first step.
_BEFORE = _recorded(_BASE, 0, "x").steps[0].parameters["a"]

#: By hint: a change after which it is right, and one after which it is wrong, each maybe with another Scenario.
_PAIR: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "64 elements are not finite and should be": (
        (_all("gradients", "a", lambda value: value * _NAN),),
        (_all("gradients", "a", lambda value: value * 7), _BASE),
    ),
    "all zeros": ((_multiple(0.0),), (_all("gradients", "c", _elements(slice(0, 64), -9.0)),)),
    "all zeros: ": ((_multiple(0.0, "one"),), (_set(skipped=False), _BASE, _set(skipped=True))),
    "only the sign of zeros differs": (
        (_all("gradients", "c", lambda value: value * -0.0), _BASE, _all("gradients", "c", lambda value: value * 0)),
        (_all("gradients", "c", lambda value: -value), _BASE),
    ),
    "did not move": (
        (_all("parameters", "a", lambda value: _recorded(_BASE, 0, "x").steps[0].parameters["a"], step=1),),
        (_all("parameters", "a", lambda value: _recorded(_BASE, 0, "x").steps[0].parameters["b"], step=1),),
    ),
    "it moves by 2 times the expected everywhere: the learning rate": (
        (_all("parameters", "a", lambda value: value + (value - _BEFORE), step=1),),
        (_all("parameters", "a", lambda value: 2 * value, step=1),),
    ),
    "it moves by": (  # one element moves otherwise
        (_all("parameters", "a", lambda value: value - 0.5 * (value - _BEFORE), step=1),),
        (
            _both(
                _all("parameters", "a", lambda value: value + (value - _BEFORE), step=1),
                _all("parameters", "a", _least(0.1), step=1),
            ),
        ),
    ),
    "it is off by -0.01 times its value before the step: the weight decay": (
        (_all("parameters", "a", lambda value: value - 0.01 * _BEFORE, step=1),),
        (_all("parameters", "a", lambda value: value - 0.01 * value, step=1),),
    ),
    "equal up to rounding": ((_multiple(1 + 1e-6),), (_multiple(1 + 1e-5),)),
    "equal up to rounding: ": (  # of some elements, and of one of 64
        (_all("gradients", "c", _elements(slice(0, 64, 4), 1e-6)),),
        (_all("gradients", "c", _elements(slice(0, 1), 1e-6)),),
    ),
    "equal up to rounding: another": (  # the least element is 0.06 off, which no rounding of its own is
        (_all("gradients", "c", _rounded), _BF16),
        (_both(_all("gradients", "c", _rounded), _all("gradients", "c", _least(0.06))), _BF16),
    ),
    "equal up to rounding: another order": (  # with fifteen leaves a bound in 16 bits has room for one leaf
        (_all("gradients", "c", _rounded), _BF16),
        (_all("gradients", "c", _rounded), _BF16.but(accumulation=5)),
    ),
    "equal up to rounding: another order of": (
        (_norms(*[3.0 * (1 + 1e-7)] * 3),),
        (_set(losses=[torch.tensor(1 + 1e-6)] * 5),),
    ),
    "equal up to rounding: another order of summation": (  # in 16 bits, a norm of other gradients
        (_both(_norms(*[3.0 * (1 + 1e-3)] * 3), _set(gradients={})), _BF16, _set(gradients={})),
        (_norms(*[3.0 * (1 + 1e-3)] * 3), _BF16),  # of the same ones
    ),
    "times the expected everywhere": ((_multiple(7.0),), (_all("gradients", "c", _elements(slice(0, 64))),)),
    "7 times the expected everywhere": ((_multiple(7.0),), (_multiple(7.0, "one"),)),
    "7 times the expected": ((_multiple(7.0),), (_multiple(7.0), _BASE, _all("gradients", "a", _only))),
    "times the expected": ((_multiple(7.0),), (_set(norm=6.0),)),
    "which is N: not averaged over the ranks": ((_multiple(3.0),), (_multiple(3.0), _BASE.but(world=4))),
    "which is 1 / (N): averaged over the ranks twice": ((_multiple(1 / 3),), (_multiple(3.0),)),
    "which is A: not averaged over the micro-steps": ((_multiple(5.0),), (_multiple(5.0), _BASE.but(accumulation=1))),
    "which is 1 / (A): averaged over the micro-steps twice": ((_multiple(1 / 5),), (_multiple(5.0),)),
    "which is N * A: not averaged over the leaves": ((_multiple(15.0),), (_multiple(15.0), _BASE.but(accumulation=1))),
    "which is 1 / (N * A): averaged over the leaves twice": ((_multiple(1 / 15),), (_multiple(15.0),)),
    "which is the loss scale: not divided by the loss scale": (
        (_multiple(8.0),),
        (_both(_multiple(8.0), _set(loss_scale=64.0)),),
    ),
    "the loss scale": ((_multiple(8.0),), (_set(loss_scale=64.0),)),
    "which is 1 / (the loss scale): divided by the loss scale twice": ((_multiple(1 / 8),), (_multiple(8.0),)),
    "which is 2: counted twice": ((_multiple(2.0),), (_multiple(2.5),)),
    "which is 1 / (2): halved": ((_multiple(0.5),), (_multiple(2.0),)),
    "which is N (not averaged over the ranks), or 2 (counted twice)": (
        (_multiple(2.0), _BASE.but(world=2)),
        (_multiple(2.0),),
    ),
    "only the end differs, from element 32 of 64 (a multiple of the chunk, 32): a tail": (
        (_all("parameters", "c", _elements(slice(32, 64))),),
        (_all("parameters", "c", _elements(slice(33, 64))),),
    ),
    "only the end differs": (
        (_all("parameters", "c", _elements(slice(40, 64))),),
        (_all("parameters", "c", _elements(slice(40, 60))),),
    ),
    "only the beginning differs, up to element 19 of 64": (
        (_all("parameters", "c", _elements(slice(0, 20))),),
        (_all("parameters", "c", _elements(slice(1, 20))),),
    ),
    "only the beginning differs": (
        (_all("parameters", "c", _elements(slice(0, 20))),),
        (_all("parameters", "c", _elements(slice(0, 64))),),
    ),
}

#: The same for the names that differ, for the ranks that differ, and for what agrees before.
_PLACES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "exactly the second parameter group differs: its hyperparameters": (
        (_both(*(_multiple(1.5, name, "parameters") for name in ("c", "d", "one"))), _GROUPS),
        (_both(*(_multiple(1.5, name) for name in ("c", "d", "one"))), _GROUPS),
    ),
    "exactly the first parameter group differs": (
        (_both(*(_multiple(1.5, name, "parameters") for name in ("a", "b"))), _GROUPS),
        (_both(*(_multiple(1.5, name, "parameters") for name in ("a", "b"))), _BASE),
    ),
    "exactly the second parameter group differs: its": (  # d has no gradient
        (
            _both(*(_multiple(1.5, name, "parameters") for name in ("c", "one")), _inactive("d")),
            _GROUPS,
            _inactive("d"),
        ),
        (_both(*(_multiple(1.5, name, "parameters") for name in ("c", "one"))), _GROUPS),
    ),
    "exactly the first parameter group": (
        (_both(*(_multiple(1.5, name, "parameters") for name in ("a", "b"))), _GROUPS),
        (  # no other group has a gradient
            _both(*(_multiple(1.5, name, "parameters") for name in ("a", "b")), _inactive("c", "d", "one")),
            _GROUPS,
            _inactive("c", "d", "one"),
        ),
    ),
    "1 of 5 names differ: a": (
        (_multiple(1.5),),
        (_both(*(_multiple(1.5, name) for name in ("a", "b", "c", "d", "one"))),),
    ),
    "only rank 2 of 3 differs here: the ranks disagree": (
        (_set(ranks=1, norm=9.0),),
        (_norms(9.0, 3.0, 9.0),),
    ),
    "only ranks 1, 2 of 3 differ here: the ranks disagree": ((_set(ranks=2, norm=9.0),), (_set(norm=9.0),)),
    "the ranks disagree": (
        (_set(ranks=1, norm=9.0),),
        (_set(norm=9.0), _BASE, _set(ranks=2, norm=9.0)),  # the other run's do
    ),
    "every rank has another value": (
        (_norms(4.0, 5.0, 6.0),),
        (_norms(9.0, 9.0, 8.0),),
    ),
    "the gradients agree: the norm's own sum is at fault": ((_set(norm=9.0),), (_set(norm=9.0, gradients={}),)),
    "or a last bit of a sum": ((_set(norm=3.0 + 2e-12),), (_set(norm=9.0),)),
    "which the gradient has lost in its division": (
        (_set(norm=3.0 + 2e-12),),
        (_set(norm=3.0 + 2e-12), Scenario(world=2, accumulation=2)),  # a quotient by 4 loses no bit
    ),
    "the gradients agree": (
        (_set(norm=9.0, step=1),),
        (_set(norm=9.0, step=1, gradients={}), _BASE, _set(step=1, gradients={})),  # only those of step 0 do
    ),
    "the norm agrees: the decision on overflow is at fault": (
        (_set(skipped=True),),
        (_set(skipped=True, norm=None), _BASE, _set(norm=None)),
    ),
    "optimizer state agrees: the end of the update is at fault, or its step count": (
        (_multiple(7.0, "a", "parameters"),),
        (
            _both(_multiple(7.0, "a", "parameters"), _set(optimizer_state={})),
            _BASE,
            _set(optimizer_state={}),
        ),
    ),
    "the end of the update is at fault": (
        (_multiple(7.0, "a", "parameters"),),
        (_both(_multiple(7.0, "a", "parameters"), _set(skipped=True)), _BASE, _set(skipped=True)),
    ),
    "its fp32 value agrees: its rounding or its way back is at fault": (
        (_multiple(7.0, "a", "model_parameters"),),
        (_multiple(7.0, "frozen", "model_parameters"),),
    ),
    "the parameters of step 0 agree: this forward used others (stale, not gathered) or other data": (
        (_set(step=1, losses=[torch.tensor(9.0)] * 5),),
        (
            _both(_set(step=1, losses=[torch.tensor(9.0)] * 5), _set(parameters={})),
            _BASE,
            _set(parameters={}),
        ),
    ),
    "the parameters of step": (
        (_set(step=1, losses=[torch.tensor(9.0)] * 5),),
        (_set(step=0, losses=[torch.tensor(9.0)] * 5),),
    ),
}
_CASES = {**_PAIR, **_PLACES}


@pytest.mark.parametrize("hint", _CASES)
def test_a_hint_that_is_right(hint: str) -> None:
    """It appears."""
    right, _ = _CASES[hint]
    assert hint in _hints(*right)


@pytest.mark.parametrize("hint", _CASES)
def test_a_hint_that_is_wrong(hint: str) -> None:
    """It does not appear, though a difference is found."""
    _, wrong = _CASES[hint]
    assert hint not in _hints(*wrong)
