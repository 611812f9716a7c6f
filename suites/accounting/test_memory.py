"""Memory: each state has on each rank the bytes of its closed form, no other tensor is kept, and no memory grows."""

from __future__ import annotations

import pytest
from hypothesis import assume

from zerobench.model_specs import Gpt
from zerobench.scenario import Scenario
from zerobench.suites.accounting import costs, grid
from zerobench.suites.accounting.ledger import demand_account, judge, offers
from zerobench.suites.support.strategies import UNDISTURBED, drawn_at_each_stage, scenarios
from zerobench.suites.support.trials import Trials


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.STATES.values(), ids=grid.STATES)
def test_resident_bytes(counted: Trials, scenario: Scenario) -> None:
    """Parameters, gradients and optimizer state have on every rank the bytes of the closed form, padding included,
    before the first step, after it and after the third."""
    judge(counted, scenario, costs.states)


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, **UNDISTURBED, frozen_steps=()), share=0.2, of_others=0.6)
def test_resident_bytes_whatever_the_scenario(counted: Trials, scenario: Scenario) -> None:
    """For all models and settings, the bytes of each state are those of the closed form."""
    assume(offers(counted, scenario, costs.states))
    costs.states(counted, scenario)


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.LIVING.values(), ids=grid.LIVING)
def test_nothing_is_hidden(reference: Trials, scenario: Scenario) -> None:
    """Between steps no tensor is alive that is neither declared as state nor a buffer of the model, except the norm's
    fold order, an int64 for each chunk of a trainable parameter."""
    demand_account(reference, scenario, "hidden")


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, **UNDISTURBED, frozen_steps=()), share=0.1)
def test_nothing_is_hidden_whatever_the_scenario(reference: Trials, scenario: Scenario) -> None:
    """So it is for all models and settings."""
    assume(reference.offers(scenario))
    demand_account(reference, scenario, "hidden")


@pytest.mark.ci
@pytest.mark.parametrize("scenario", grid.LIVING.values(), ids=grid.LIVING)
def test_memory_does_not_grow(trials: Trials, scenario: Scenario) -> None:
    """After eight steps as many bytes of tensors are alive as after three."""
    judge(trials, scenario, costs.growth)


@pytest.mark.ci
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_gradients_leave_as_they_are_made(reference: Trials, stage: int) -> None:
    """At most two blocks' of twelve wait for their reduction; in the first backward, too, because a model that fits
    later must fit then."""
    block = Gpt(width=16, layers=12, heads=2, context=16, vocab=32)
    scenario = Scenario(model=block, stage=stage, reduce_bucket=1, prefetch_bucket=0, steps=3)
    demand_account(reference, scenario, "unreduced")
