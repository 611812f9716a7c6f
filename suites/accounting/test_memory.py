"""Memory: each state has on each rank the bytes of its closed form, no other tensor is kept, and no memory grows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume

from zerobench.judge.ledger import Entry
from zerobench.meters import Stray
from zerobench.scenario import Gpt, Scenario
from zerobench.suites.accounting import grid
from zerobench.suites.accounting.ledger import (
    STEPS,
    Census,
    census,
    demand,
    formula,
    known,
    ledgers,
    most_gradients,
    skip_unless_offered,
    theory_of,
)
from zerobench.suites.support.strategies import UNDISTURBED, drawn, scenarios
from zerobench.suites.support.trials import TIME_LIMIT, Trials
from zerobench.theory import memory
from zerobench.workload import models


@pytest.mark.rotating
@pytest.mark.parametrize("scenario", grid.STATES.values(), ids=grid.STATES)
def test_resident_bytes(counted: Trials, scenario: Scenario) -> None:
    """Parameters, gradients and optimizer state have on every rank the bytes of the closed form, padding included,
    before the first step, after it and after the third."""
    skip_unless_offered(counted, scenario)
    _demand_resident(counted, scenario)


@drawn(scenarios(**UNDISTURBED), share=0.75)
def test_resident_bytes_whatever_the_scenario(counted: Trials, scenario: Scenario) -> None:
    """For all models and settings, the bytes of each state are those of the closed form."""
    assume(counted.offers(scenario))
    _demand_resident(counted, scenario)


@pytest.mark.parametrize("scenario", grid.LIVING.values(), ids=grid.LIVING)
def test_nothing_is_hidden(reference: Trials, scenario: Scenario) -> None:
    """Between steps no tensor is alive that is neither declared as state nor a buffer of the model, except the norm's
    fold order, an int64 for each chunk of a trainable parameter."""
    chunks = memory.chunk_order(scenario, models.build(scenario))
    allowed = [Stray((chunks,), torch.int64, 8 * chunks)]
    for each in _censuses(reference, scenario):
        entry = Entry("undeclared", "tensors alive that no state declares")
        demand(reference, scenario, each.rank, entry, each.strays, allowed, "the order of the chunks, and nothing else")


@pytest.mark.parametrize("scenario", grid.LIVING.values(), ids=grid.LIVING)
def test_memory_does_not_grow(trials: Trials, scenario: Scenario) -> None:
    """After eight steps as many bytes of tensors are alive as after three."""
    skip_unless_offered(trials, scenario)
    for each in _censuses(trials, scenario):
        entry = Entry("growth", "bytes of all tensors alive after 8 steps")
        demand(trials, scenario, each.rank, entry, each.live[8], each.live[3], "as after 3 steps")


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_gradients_leave_as_they_are_made(reference: Trials, stage: int) -> None:
    """At most two blocks' of twelve wait for their reduction; in the first backward, too, because a model that fits
    later must fit then."""
    block = Gpt(width=16, layers=12, heads=2, context=16, vocab=32)
    scenario = Scenario(model=block, stage=stage, reduce_bucket=1, prefetch_bucket=0, steps=3)
    whole = sum(parameter.nbytes for parameter in models.shapes(scenario).parameters())
    reference.ran += 1
    by_rank = reference.pool.run(most_gradients, reference.name, scenario, world=2, timeout=TIME_LIMIT)
    for rank, most in enumerate(by_rank):
        for step, alive in enumerate(most):
            entry = Entry("unreduced", f"{alive} bytes of gradients alive at once in step {step}", "gradients", step)
            demand(reference, scenario, rank, entry, alive <= whole / 6, True, f"<= {whole} / 6, of all gradients")


def _demand_resident(trials: Trials, scenario: Scenario) -> None:
    model, theory = models.build(scenario), theory_of(trials)
    measured = ledgers(trials, scenario, "states")
    for ledger in measured:
        for steps, got in ((0, ledger.before), (1, ledger.resident[0]), (STEPS, ledger.resident[-1])):
            expected = known(trials, theory.memory(scenario, model, ledger.rank, steps), "resident")
            for state, size in expected.items():
                what, last = f"bytes of {state} resident after {steps} steps", steps - 1 if steps else None
                entry = Entry("resident", what, state, last)
                demand(trials, scenario, ledger.rank, entry, got[state], size, formula(trials, entry))


_counted: dict[tuple[Trials, Scenario], list[Census]] = {}


def _censuses(trials: Trials, scenario: Scenario) -> list[Census]:
    """Taken once for all tests."""
    if (trials, scenario) not in _counted:
        trials.ran += 1
        taken = trials.pool.run(census, trials.name, scenario, (3, 8), world=scenario.world, timeout=TIME_LIMIT)
        _counted[trials, scenario] = taken
    return _counted[trials, scenario]
