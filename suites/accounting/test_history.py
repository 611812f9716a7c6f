"""History: a step costs the same if an evaluation, a reading or a skipped step came before it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume

from zerobench.judge.command import ReplayCommand
from zerobench.judge.ledger import Entry
from zerobench.oracles.rules import state_keys
from zerobench.recording import Traffic
from zerobench.scenario import LossScale, Optimizer, Read, Scenario
from zerobench.suites.accounting import bounds, grid
from zerobench.suites.accounting.history import Between, Call, Costs, History, long_run, trace
from zerobench.suites.accounting.ledger import demand, demand_at_most, known, offered, offers, theory_of
from zerobench.suites.support.strategies import UNDISTURBED, USUAL_STEPS, drawn, models, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.workload import models as built
from zerobench.workload.data import DTYPES

#: A routed parameter gets its state late, and ``max_live`` keeps units whole from one call to the next on purpose.
_SCENARIOS = scenarios(model=models(routed=False), **UNDISTURBED, **USUAL_STEPS, max_live=0, steps=3)

_FORMULA = "as in the same step of the same training without the call"
#: The step that overflows.
_SKIPPED = 1
#: Bytes of a call that carries flags, counts or the ranks' agreement; these models have tens of parameters.
_MESSAGE = 64
#: Steps of the test for leaks; by the third torch's engines have arranged their buckets.
_LONG, _EARLY = 50, 3


@drawn(_SCENARIOS, share=0.075)
def test_a_step_costs_the_same_after_an_evaluation(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of every step are those without evaluations; an evaluation leaves as many bytes
    resident as before it."""
    assume(offers(trials, scenario, "after_evaluation"))
    _demand_the_same(trials, scenario, "evaluation")


@drawn(_SCENARIOS, share=0.075)
def test_a_step_costs_the_same_after_a_reading(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of every step are those without readings of gradients, parameters and optimizer
    state. A reading leaves as many bytes resident as before it, and receives at most as many as an all-reduce of fp32
    values does."""
    assume(offers(trials, scenario, "after_reading"))
    _demand_the_same(trials, scenario, "reading")


@drawn(_SCENARIOS, share=0.075)
def test_a_step_costs_the_same_after_a_save(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of every step are those without saves; a save leaves as many bytes resident as before
    it."""
    trials.skip_unless_it_saves()
    assume(offers(trials, scenario, "after_saving") and trials.offers(scenario.but(resumes=(1,))))
    _demand_the_same(trials, scenario, "saving")


@pytest.mark.ci
@pytest.mark.parametrize("between", ["evaluation", "reading", "saving"])
@pytest.mark.parametrize("stage", range(4))
def test_gradients_wait_no_longer_after_a_call(trials: Trials, stage: int, between: Between) -> None:
    """If a model has blocks enough to reduce each while backward goes on, as many bytes of gradients wait at once after
    an evaluation, a reading or a save as without it."""
    scenario = offered(trials, Scenario(model=grid.DEEP, stage=stage, chunk=32, reduce_bucket=1), f"after_{between}")
    if between == "saving":
        offered(trials, scenario.but(resumes=(1,)), "after_saving")
    _demand_the_same(trials, scenario, between)


@pytest.mark.ci
@pytest.mark.parametrize("stage", range(4))
def test_an_evaluation_between_micro_steps_leaves_nothing(trials: Trials, stage: int) -> None:
    """It leaves as many bytes resident as before it, and the rest of the step costs as much. Another engine than the
    contract's may keep what the evaluation has gathered, and gathers less after it."""
    if not trials.subject.promises_bits:
        pytest.skip("a rule of engines that promise the contract's bits")
    scenario = Scenario(model=grid.DEEP, stage=stage, chunk=32, accumulation=2, prefetch_bucket=0, max_live=0)
    scenario = offered(trials, scenario, "after_evaluation")
    offered(trials, scenario.but(reads=(Read("evaluation", 1, 1),)), "after_evaluation")
    _demand_the_same(trials, scenario, "evaluation in a step")


@pytest.mark.ci
@pytest.mark.parametrize("stage", range(4))
def test_a_short_step_costs_as_much_as_its_micro_steps(trials: Trials, stage: int) -> None:
    """If the client ends a step early, the next one costs the same as without it. An engine that promises the
    contract's bits sends in the short step what it sends in a step of so many micro-steps."""
    short = Scenario(model=grid.DEEP, stage=stage, chunk=32, accumulation=3, short_steps=((1, 2),), prefetch_bucket=0)
    short = offered(trials, short, "after_short_step")
    whole = short.but(short_steps=())
    found, usual, single = (_histories(trials, each, "nothing") for each in (short, whole, whole.but(accumulation=1)))
    for got, expected, one in zip(found, usual, single, strict=True):
        _demand_steps(trials, short, expected, got, [2])
        if trials.subject.promises_bits:
            costs = got.traffic[1], one.traffic[1]
            _demand_traffic(trials, short, got.rank, "the short step", 1, *costs, "as with so many micro-steps")


@drawn(_SCENARIOS, share=0.125)
def test_a_step_costs_the_same_after_a_skipped_step(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of the other steps are those without the overflow."""
    _skip_unless_steps_are_skipped(trials)
    poisoned = scenario.but(poison=((_SKIPPED, 0),))
    assume(offers(trials, scenario, "after_skip") and offers(trials, poisoned, "after_skip"))
    plain, after = _histories(trials, scenario, "nothing"), _histories(trials, poisoned, "nothing")
    assume(not any(plain[0].skipped) and after[0].skipped == [False, True, False])
    for expected, got in zip(plain, after, strict=True):
        _demand_steps(trials, poisoned, expected, got, [0, 2])


@drawn(_SCENARIOS, share=0.075)
def test_cost_of_an_evaluation(counted: Trials, scenario: Scenario) -> None:
    """Calls and bytes of every evaluation are those of the closed form: a forward's gathers, and no collective if
    every rank has all parameters. If the engine skips steps, the second one follows a step that overflows."""
    scenario = scenario.but(steps=4)
    poisoned = scenario.but(poison=((_SKIPPED, 0),))
    scenario = poisoned if counted.offers(poisoned) else scenario
    assume(offers(counted, scenario, "traffic"))
    model, theory = built.build(scenario), theory_of(counted)
    for each in _histories(counted, scenario, "evaluation"):
        for index, call in enumerate(each.calls):
            form = known(counted, theory.evaluation(scenario, model, each.rank, index), "traffic")
            _demand_traffic(counted, scenario, each.rank, f"evaluation {index}", None, call.traffic, form)


@drawn(_SCENARIOS, share=0.075)
def test_cost_of_a_skipped_step(counted: Trials, scenario: Scenario) -> None:
    """Calls and bytes of a step that overflows are those of the closed form: all that is sent up to the decision."""
    _skip_unless_steps_are_skipped(counted)
    scenario = scenario.but(poison=((_SKIPPED, 0),))
    assume(offers(counted, scenario, "traffic"))
    model, theory = built.build(scenario), theory_of(counted)
    for each in _histories(counted, scenario, "nothing"):
        assume(each.skipped[: _SKIPPED + 1] == [False, True])
        form = known(counted, theory.skipped(scenario, model, each.rank, _SKIPPED), "traffic")
        what = f"step {_SKIPPED}, which is skipped"
        _demand_traffic(counted, scenario, each.rank, what, _SKIPPED, each.traffic[_SKIPPED], form)


#: Its activation functions save their outputs for backward.
_SAVING_OUTPUTS = replace(grid.DEEP, activation="relu")


_OF_ODD_STAGES: list[dict[str, Any]] = [{"accumulation": 2}, {"forwards": "dropped"}]


@pytest.mark.rotating
@pytest.mark.parametrize("stage", range(4))
def test_memory_does_not_grow_in_a_long_run(trials: Trials, stage: int) -> None:
    """After 50 steps, of which one is skipped and two in a row, with evaluations, readings, saves, loads and edits
    between them, as many bytes of tensors are alive as after three, and as many descriptors and threads; from the
    fourth on all steps that are applied have the same traffic, also after the client has changed a rate, and after one
    in which a block rests. No tensor waits for the collector of reference cycles.
    Stages 1 and 3 accumulate, and run forwards whose loss nobody uses, if the engine offers it. If it promises the
    contract's bits, a dynamic loss scale is at its minimum at first and grows later."""
    scenario = Scenario(
        model=_SAVING_OUTPUTS,
        world=2,
        stage=stage,
        dtype="fp16",
        steps=_LONG,
        chunk=32,
        optimizer=Optimizer(name="sgd"),
    ).but(loss_scale=LossScale(static=1.0), poison=((10, 0), (11, 1), (30, 1)))
    changes: list[dict[str, Any]] = [
        {"lr_factors": (*[1.0] * 15, 0.5)},
        {"frozen_steps": (20,)},
        *([{"loss_scale": LossScale(initial_power=0, window=15)}] if trials.subject.promises_bits else []),
        *(_OF_ODD_STAGES if stage % 2 else []),
    ]
    for more in changes:
        scenario = scenario.but(**more) if trials.offers(scenario.but(**more)) else scenario
    scenario = offered(trials, scenario, "long_run", "poison")
    for rank, found in enumerate(trials.ask(ReplayCommand(scenario, trials.name), long_run, _EARLY)):
        for name, early in vars(found.early).items():
            entry = Entry("growth", f"{name} after {_LONG} steps, in bytes or numbers", name)
            demand(trials, scenario, rank, entry, vars(found.late)[name], early, f"as after {_EARLY} steps")
        entry = Entry("growth", f"bytes of tensors in reference cycles after {_LONG // 2 - _EARLY} steps", "cycles")
        demand(trials, scenario, rank, entry, found.cycles, 0, "a step frees its tensors without the collector")
        first, *others = (step for step in found.traffic if step >= _EARLY)
        for step in others:
            costs = found.traffic[step], found.traffic[first]
            _demand_traffic(trials, scenario, rank, f"step {step}", step, *costs, formula=f"as in step {first}")


def _demand_the_same(trials: Trials, scenario: Scenario, between: Between) -> None:
    plain, other = _histories(trials, scenario, "nothing"), _histories(trials, scenario, between)
    for expected, got in zip(plain, other, strict=True):
        for call in got.calls:
            _demand_cheap(trials, scenario, got.rank, call)
            for state, size in call.before.items():
                entry = Entry("resident", f"bytes of {state} resident after the {call.what}", state)
                demand(trials, scenario, got.rank, entry, call.after[state], size, "as before it")
        _demand_steps(trials, scenario, expected, got, range(scenario.steps))


def _demand_cheap(trials: Trials, scenario: Scenario, rank: int, call: Call) -> None:
    """A reading has a bound: for each state of it, what an all-reduce receives, and a message with each call."""
    if call.what.startswith("reading"):
        states = len(state_keys(scenario.optimizer)) if "optimizer" in call.what else 1
        received = sum(each.received for each in call.traffic.values())
        calls = sum(each.calls for each in call.traffic.values())
        most = 2 * states * bounds.fp32(scenario, built.shapes(scenario)) + calls * _MESSAGE
        entry = Entry("traffic", f"{received} bytes received by the {call.what}")
        demand_at_most(trials, scenario, rank, entry, received, most, f"{states} all-reduces", "an all-reduce a state")


def _demand_steps(
    trials: Trials, scenario: Scenario, expected: History, got: History, steps: list[int] | range
) -> None:
    for step in steps:
        what = f"step {step}"
        _demand_traffic(trials, scenario, got.rank, what, step, got.traffic[step], expected.traffic[step])
        for state, size in expected.resident[step].items():
            entry = Entry("resident", f"bytes of {state} resident after step {step}", state, step)
            demand(trials, scenario, got.rank, entry, got.resident[step][state], size, _FORMULA)
        entry = Entry("unreduced", f"most bytes of gradients that wait at once in {what}", "gradients", step)
        demand(trials, scenario, got.rank, entry, got.waiting[step], expected.waiting[step], _FORMULA)


def _demand_traffic(
    trials: Trials,
    scenario: Scenario,
    rank: int,
    what: str,
    step: int | None,
    got: Costs,
    expected: Costs,
    formula: str = _FORMULA,
) -> None:
    for collective in sorted({*got, *expected}):
        entry = Entry("traffic", f"{collective} in {what}", collective, step)
        both = got.get(collective, Traffic()), expected.get(collective, Traffic())
        demand(trials, scenario, rank, entry, *both, formula)


def _skip_unless_steps_are_skipped(trials: Trials) -> None:
    """Skip the test if the engine offers no overflow, at any stage and in any precision."""
    poisoned = Scenario(loss_scale=LossScale(static=1.0), poison=((_SKIPPED, 0),))
    forms = itertools.product(range(4), DTYPES)
    if not any(trials.offers(poisoned.but(stage=stage, dtype=dtype)) for stage, dtype in forms):
        pytest.skip(f"{trials.name} offers no Scenario in which a step is skipped")


def _histories(trials: Trials, scenario: Scenario, between: Between) -> list[History]:
    return trials.ask(ReplayCommand(scenario, trials.name), trace, between)
