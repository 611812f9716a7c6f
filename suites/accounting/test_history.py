"""History: a step costs the same if an evaluation, a reading or a skipped step came before it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume

from zerobench.scenario import Dtype, Forwards, LossScale, Optimizer, Read, Scenario
from zerobench.suites.accounting import costs, grid, histories
from zerobench.suites.accounting.forms import Form, demand_traffic
from zerobench.suites.accounting.ledger import judge, known, offered, offers, theory_of
from zerobench.suites.support.strategies import UNDISTURBED, USUAL_STEPS, drawn, models, scenarios
from zerobench.suites.support.trials import Trials
from zerobench.workload import models as built
from zerobench.workload.data import DTYPES

#: A routed parameter gets its state late, and ``max_live`` keeps units whole from one call to the next on purpose.
_SCENARIOS = scenarios(model=models(routed=False), **UNDISTURBED, **USUAL_STEPS, max_live=0, steps=3)

#: The step that overflows.
_SKIPPED = 1
#: Steps of the test for leaks.
_LONG = 50
_CLOSED = "the closed form"


@drawn(_SCENARIOS, share=0.075, of_others=0.2)
def test_a_step_costs_the_same_after_an_evaluation(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of every step are those without evaluations; an evaluation leaves as many bytes
    resident as before it."""
    assume(offers(trials, scenario, histories.after_evaluation))
    histories.after_evaluation(trials, scenario)


@drawn(_SCENARIOS, share=0.075, of_others=0.2)
def test_a_step_costs_the_same_after_a_reading(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of every step are those without readings of gradients, parameters and optimizer
    state. A reading leaves as many bytes resident as before it, and receives at most as many as an all-reduce of fp32
    values does."""
    assume(offers(trials, scenario, histories.after_reading))
    histories.after_reading(trials, scenario)


@drawn(_SCENARIOS, share=0.075, of_others=0.2)
def test_a_step_costs_the_same_after_a_save(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of every step are those without saves; a save leaves as many bytes resident as before
    it."""
    trials.skip_unless_it_saves()
    assume(offers(trials, scenario, histories.after_saving) and trials.offers(scenario.but(resumes=(1,))))
    histories.after_saving(trials, scenario)


@pytest.mark.ci
@pytest.mark.parametrize("between", ["evaluation", "reading", "saving"])
@pytest.mark.parametrize("stage", range(4))
def test_gradients_wait_no_longer_after_a_call(trials: Trials, stage: int, between: str) -> None:
    """If a model has blocks enough to reduce each while backward goes on, as many bytes of gradients wait at once after
    an evaluation, a reading or a save as without it."""
    cost = costs.COSTS[f"after_{between}"]
    scenario = offered(trials, Scenario(model=grid.DEEP, stage=stage, chunk=32, reduce_bucket=1), cost)
    if between == "saving":
        offered(trials, scenario.but(resumes=(1,)), cost)
    cost(trials, scenario)


@pytest.mark.ci
@pytest.mark.parametrize("stage", range(4))
def test_an_evaluation_between_micro_steps_leaves_nothing(trials: Trials, stage: int) -> None:
    """It leaves as many bytes resident as before it, the rest of the step costs as much, and it sends at most what an
    evaluation between steps does. Another engine than the contract's may keep what the evaluation has gathered, and
    gathers less after it."""
    if not trials.subject.promises_bits:
        pytest.skip("a rule of engines that promise the contract's bits")
    scenario = Scenario(model=grid.DEEP, stage=stage, chunk=32, accumulation=2, prefetch_bucket=0, persistence=20)
    scenario = offered(trials, scenario, histories.after_evaluation)
    offered(trials, scenario.but(reads=(Read("evaluation", 1, 1),)), histories.after_evaluation)
    histories.after_evaluation_in_a_step(trials, scenario)


@pytest.mark.ci
@pytest.mark.parametrize("stage", range(4))
def test_a_short_step_costs_as_much_as_its_micro_steps(trials: Trials, stage: int) -> None:
    """If the client ends a step early, the next one costs the same as without it. An engine that promises the
    contract's bits sends in the short step what it sends in a step of so many micro-steps; gradients of every second
    stage travel in another dtype than their own."""
    short = Scenario(
        model=grid.DEEP,
        stage=stage,
        chunk=32,
        accumulation=3,
        short_steps=((1, 2),),
        communication_dtype="bf16" if stage % 2 else None,
        prefetch_bucket=0,
    )
    histories.after_short_step(trials, offered(trials, short, histories.after_short_step))


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", range(4))
def test_a_step_in_which_a_block_rests_costs_no_more(trials: Trials, stage: int, dtype: Dtype) -> None:
    """If the client freezes a block in a step, the step sends at most what it does if the block trains, and the next
    one as much. Another engine than the contract's may have to find the parameters without a gradient, as DDP does."""
    if not trials.subject.promises_bits:
        pytest.skip("a rule of engines that promise the contract's bits")
    rests = Scenario(model=grid.DEEP, stage=stage, dtype=dtype, chunk=32, prefetch_bucket=0, frozen_steps=(1,))
    judge(trials, rests, histories.after_rest, "dtype", "frozen_steps")


@pytest.mark.ci
@pytest.mark.parametrize("forwards", ["two", "dropped", "no_grad", "metric"])
@pytest.mark.parametrize("stage", range(4))
def test_a_further_forward_costs_what_an_evaluation_does(trials: Trials, stage: int, forwards: Forwards) -> None:
    """A micro-step's second forward, whatever its loss is for, sends at most one and a half times what an evaluation
    does, or twice as much if a backward follows, and leaves as many bytes resident. Another engine than the contract's
    may agree on an order of gathers in its first forwards, as DeepSpeed's stage 3 does."""
    if not trials.subject.promises_bits:
        pytest.skip("a rule of engines that promise the contract's bits")
    further = Scenario(
        model=grid.DEEP, stage=stage, chunk=32, forwards=forwards, accumulation=2, prefetch_bucket=0, max_live=0
    )
    judge(trials, further, histories.after_forward, "forwards")


@drawn(_SCENARIOS, share=0.125, of_others=0.25)
def test_a_step_costs_the_same_after_a_skipped_step(trials: Trials, scenario: Scenario) -> None:
    """Traffic and resident bytes of the other steps are those without the overflow."""
    _skip_unless_steps_are_skipped(trials)
    poisoned = scenario.but(poison=((_SKIPPED, 0),))
    assume(offers(trials, scenario, histories.after_skip) and offers(trials, poisoned, histories.after_skip))
    assume(histories.skips(trials, poisoned))
    histories.after_skip(trials, poisoned)


@drawn(_SCENARIOS, share=0.075, of_others=0.2)
def test_cost_of_an_evaluation(counted: Trials, scenario: Scenario) -> None:
    """Calls and bytes of every evaluation are those of the closed form: a forward's gathers, and no collective if
    every rank has all parameters. If the engine skips steps, the second one follows a step that overflows."""
    scenario = scenario.but(steps=4)
    poisoned = scenario.but(poison=((_SKIPPED, 0),))
    scenario = poisoned if counted.offers(poisoned) else scenario
    assume(offers(counted, scenario, costs.traffic))
    model, theory = built.build(scenario), theory_of(counted)
    for each in histories.traced(counted, scenario, "evaluation"):
        for index, call in enumerate(each.calls):
            form = known(counted, theory.evaluation(scenario, model, each.rank, index), "traffic")
            what = f"evaluation {index}"
            demand_traffic(counted, scenario, each.rank, what, None, call.traffic, Form.exactly(_CLOSED, form))


@drawn(_SCENARIOS, share=0.075, of_others=0.2)
def test_cost_of_a_skipped_step(counted: Trials, scenario: Scenario) -> None:
    """Calls and bytes of a step that overflows are those of the closed form: all that is sent up to the decision."""
    _skip_unless_steps_are_skipped(counted)
    scenario = scenario.but(poison=((_SKIPPED, 0),))
    assume(offers(counted, scenario, costs.traffic))
    model, theory = built.build(scenario), theory_of(counted)
    for each in histories.traced(counted, scenario, "nothing"):
        assume(each.skipped[: _SKIPPED + 1] == [False, True])
        form = known(counted, theory.skipped(scenario, model, each.rank, _SKIPPED), "traffic")
        what, got = f"step {_SKIPPED}, which is skipped", each.traffic[_SKIPPED]
        demand_traffic(counted, scenario, each.rank, what, _SKIPPED, got, Form.exactly(_CLOSED, form))


#: Its activation functions save their outputs for backward.
_SAVING_OUTPUTS = replace(grid.DEEP, activation="relu")


_OF_ODD_STAGES: list[dict[str, Any]] = [{"accumulation": 2}, {"short_steps": ((40, 1),)}, {"forwards": "dropped"}]


@pytest.mark.rotating
@pytest.mark.parametrize("stage", range(4))
def test_memory_does_not_grow_in_a_long_run(trials: Trials, stage: int) -> None:
    """After 50 steps, of which one is skipped and two in a row, with evaluations, readings, saves, loads and edits
    between them, as many bytes of tensors are alive as after three, and as many descriptors and threads; from the
    fourth on all steps that are applied have the same traffic, also after the client has changed a hyperparameter,
    and after one in which a block rests or the client zeroes gradients. No tensor waits for the collector of reference
    cycles.
    Stages 1 and 3 accumulate, and run forwards whose loss nobody uses, if the engine offers it; in the others the
    engine steps a scheduler. If it promises the contract's bits, a dynamic loss scale is at its minimum at first and
    grows later."""
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
        {"weight_decay_factors": (*[1.0] * 22, 0.5)},
        {"momentum_factors": (*[1.0] * 26, 0.5)},
        {"eps_factors": (*[1.0] * 28, 0.5)},
        {"frozen_steps": (20,)},
        {"gradient_edits": (35,)},
        *([{"loss_scale": LossScale(initial_power=0, window=15)}] if trials.subject.promises_bits else []),
        *(_OF_ODD_STAGES if stage % 2 else [{"scheduled_by": "engine"}]),
    ]
    for more in changes:
        scenario = scenario.but(**more) if trials.offers(scenario.but(**more)) else scenario
    judge(trials, scenario, histories.long_run, "poison")


def _skip_unless_steps_are_skipped(trials: Trials) -> None:
    """Skip the test if the engine offers no overflow, at any stage and in any precision."""
    poisoned = Scenario(loss_scale=LossScale(static=1.0), poison=((_SKIPPED, 0),))
    forms = itertools.product(range(4), DTYPES)
    if not any(trials.offers(poisoned.but(stage=stage, dtype=dtype)) for stage, dtype in forms):
        pytest.skip(f"{trials.name} offers no Scenario in which a step is skipped")
