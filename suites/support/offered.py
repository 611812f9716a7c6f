"""Offered: the Scenario that an engine offers nearest to a drawn one, so that no draw is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from zerobench.scenario import LossScale, Odd, Scenario
from zerobench.subject import Subject
from zerobench.suites.support.covering import PECULIAR

#: The value of each field that most engines offer, by field of the Scenario, of its optimizer and of its odd model.
_PLAIN: dict[str, Any] = {
    "offload_param": "none",
    "offload_optimizer": "none",
    "accumulator_dtype": None,
    "communication_dtype": None,
    "schedule": "auto",
    "loss_scale": LossScale(static=16.0),
    "poison": (),
    "reads": (),
    "clip": 0.0,
    "dtype": "fp32",
    "accumulation": 1,
    "world": 2,
}
_PLAIN_OPTIMIZER: dict[str, Any] = {"second_group": False, "name": "adamw"}
_PLAIN_MODEL: dict[str, Any] = {"recompute": "none", "dropout": 0.0, **dict.fromkeys(PECULIAR, False)}


def nearest(subject: type[Subject], scenario: Scenario, fixed: Collection[str]) -> Scenario | str:
    """The Scenario with fields made plain, one after another, as long as the engine gives a reason against it.

    Fields in ``fixed`` keep their value. The reason if the engine refuses the Scenario with every change.
    """
    reason = subject.unsupported(scenario)
    while reason is not None:
        tried = ((each, subject.unsupported(each)) for each in _neighbours(scenario, fixed))
        found = next((pair for pair in tried if pair[1] != reason), None)
        if found is None:
            return reason
        scenario, reason = found
    return scenario


def _neighbours(scenario: Scenario, fixed: Collection[str]) -> Iterator[Scenario]:
    """The Scenarios with one field made plain."""
    for name, value in _PLAIN.items():
        if name not in fixed and getattr(scenario, name) != value:
            yield _fitted(scenario.but(**{name: value}))
    for name, value in _PLAIN_OPTIMIZER.items():
        if name not in fixed and getattr(scenario.optimizer, name) != value:
            yield scenario.but(optimizer=replace(scenario.optimizer, **{name: value}))
    for name, value in _PLAIN_MODEL.items():
        if name not in fixed and isinstance(scenario.model, Odd) and getattr(scenario.model, name) != value:
            yield scenario.but(model=replace(scenario.model, **{name: value}))


def _fitted(scenario: Scenario) -> Scenario:
    """Without bad leaves and readings that the world or the number of micro-steps no longer has."""
    poison = tuple((step, leaf % scenario.leaves) for step, leaf in scenario.poison)
    last = scenario.accumulation
    reads = tuple(replace(each, at=last if each.what == "gradients" else min(each.at, last)) for each in scenario.reads)
    return scenario.but(poison=poison, reads=reads)
