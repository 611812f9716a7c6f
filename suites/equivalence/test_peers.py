"""Against other oracles than the canonical trainer: torch DDP, float64, and data on which every sum is exact."""

from __future__ import annotations

import math

import hypothesis.strategies as st
from hypothesis import assume

from zerobench.judge.bounds import gradient_bound, step_bound
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import Difference
from zerobench.judge.judgement import (
    BUDGET,
    agree_within,
    budget_used,
    disagreement,
    error_against,
    is_exact,
    is_yardstick,
)
from zerobench.judge.parts import Part
from zerobench.oracles.canonical_trainer import OracleStep, canonical
from zerobench.recording import State, Trajectory
from zerobench.scenario import Scenario
from zerobench.subjects.torch_ddp import TorchDdp
from zerobench.suites.support.covering import among
from zerobench.suites.support.offered import at_offered_stage
from zerobench.suites.support.rounding import IeeeDdp
from zerobench.suites.support.strategies import (
    DYADIC_MODELS,
    ONE_GROUP,
    UNDISTURBED,
    drawn,
    drawn_at_each_stage,
    models,
    optimizers,
    scenarios,
)
from zerobench.suites.support.trials import Trials, exact

_LR = among("lr", 1e-2, 1e-3)
_ADAPTIVE = st.sampled_from(["adam", "adamw", "adagrad"])


def _without_zeroed_gradients(scenario: Scenario) -> Scenario:
    """Zeroed gradients leave the state of an adaptive rule at zero. The update after them is of the size of the rate
    for a gradient of any size, and amplifies the roundings of small ones: right engines differ by more than twice."""
    return scenario.but(gradient_edits=())


#: Lion steps by a sign. The first steps of Adam and Adagrad do so too, unless eps is large: if a rounding turns the
#: sign, the parameter moves the other way, and the error says nothing. Roundings to 16 bits turn some signs, those to
#: fp32 hardly any. With eps = 1 the step is a smooth function of the gradient in every precision.
_CONTINUOUS = (
    scenarios(clip=0.0, **UNDISTURBED | {"optimizer": optimizers(name="sgd", lr=_LR)})
    | scenarios(clip=0.0, **UNDISTURBED | {"optimizer": optimizers(name=_ADAPTIVE, eps=1.0, lr=_LR)})
    | scenarios(
        poison=(),
        reads=(),
        clip=0.0,
        dtype="fp32",
        autocast=False,
        communication_dtype=None,
        accumulator_dtype=None,
        optimizer=optimizers(name=_ADAPTIVE, lr=_LR),
    ).map(_without_zeroed_gradients)
)

_PARAMETERS: tuple[Part, ...] = ("parameters",)
_EXACT: tuple[Part, ...] = ("losses", "gradients", "parameters")
_DDP = f"{IeeeDdp.__module__}:{IeeeDdp.__qualname__}"


#: What DDP and torch.optim offer: no reentrant recomputation of some models, no skipped step in fp32, and no scheduler
#: that the engine steps.
_OF_DDP = {
    "dtype": "fp32",
    "accumulation": 1,
    "clip": 0.0,
    "communication_dtype": None,
    "accumulator_dtype": None,
    "poison": (),
    "scheduled_by": "client",
    "model": models(recompute=among("recompute", "none", "non_reentrant")),
}


@drawn_at_each_stage(lambda stage: scenarios(stage=stage, **_OF_DDP), share=0.9)
def test_equals_ddp_bitwise(bits: Trials, scenario: Scenario) -> None:
    """In fp32, with A = 1 and one or two ranks, torch DDP with torch.optim adds in the same order: the same bits,
    except the sign of a zero: the contract adds to +0, and DDP on one rank adds nothing."""
    scenario = scenario.but(world=min(scenario.world, 2))
    ddp = scenario.but(stage=0)
    assume(bits.offers(scenario) and bits.offers(ddp, TorchDdp.name))
    parts: tuple[Part, ...] = ("losses", "gradients", "parameters", "optimizer_state")
    got, expected = bits.run(scenario, parts), bits.run(ddp, parts, subject=_DDP)
    bits.agree(got, expected, parts, zeros_alike=True)


#: The bound assumes that dividing a loss by A rounds nothing.
_EXACT_SHARES = among("accumulation", 1, 2, 4)


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage, steps=1, accumulation=_EXACT_SHARES, clip=0.0, accumulator_dtype=None, poison=()
    ),
    of_bits=0.5,
    least=0.0,
)
def test_gradients_within_the_bound_of_their_sum(trials: Trials, scenario: Scenario) -> None:
    """Any order of adding the leaves' gradients stays within the rounding bound of that sum, element by element."""
    scenario = trials.nearest(scenario, "stage", "accumulation", "clip", "poison")
    expected = canonical(scenario, frozenset(["gradients"]), magnitudes=True, policies=trials.subject.policies)
    assume(not expected.steps[0].skipped)
    got, policies = trials.run(scenario, ["gradients"]), trials.subject.policies
    agree_within(got, expected, [_bound(expected)], name=trials.name, policies=policies)


def _bound(expected: Trajectory) -> State:
    """The largest difference of the mean gradients of a right engine, after one step."""
    [step] = expected.steps
    assert isinstance(step, OracleStep)
    return gradient_bound(expected.scenario, step.magnitudes, step.lost)


@drawn(_CONTINUOUS, share=0.5, of_bits=0.25)
def test_error_against_float64(trials: Trials, scenario: Scenario) -> None:
    """The error against a float64 run of the same leaves is at most twice that of two right engines: DDP and the
    canonical trainer, in the same precision. One of them can be lucky if a Scenario amplifies roundings."""
    scenario = trials.nearest(at_offered_stage(trials.subject, scenario), "clip", "loss_scale", "dtype", "name")
    ddp = scenario.but(stage=0, overlap=True, replicate=1, settings=(), saving="")
    assume(trials.offers(ddp, TorchDdp.name))
    policies = trials.subject.policies
    reference = exact(scenario.but(stage=0), policies)
    got, base = trials.run(scenario, _PARAMETERS)[0], trials.run(ddp, _PARAMETERS, subject="torch-ddp")[0]
    assume(not any(step.skipped for step in got.steps))
    rounded = canonical(scenario, last=frozenset(["parameters"]), policies=policies)
    of_ddp = error_against(base, exact(scenario.but(stage=0), TorchDdp.policies))  # it follows its own policies
    yardstick = error_against(rounded, reference)
    if is_yardstick(of_ddp, yardstick, scenario):
        yardstick = max(yardstick, of_ddp)
    _within_budget(trials, scenario, "DDP", error_against(got, reference), yardstick)


def _within_budget(trials: Trials, scenario: Scenario, whose: str, error: float, yardstick: float) -> None:
    used = budget_used(error, yardstick)
    if used > 1:
        found = Difference(
            trials.name,
            "the float64 run",
            scenario,
            rank=0,
            step=scenario.steps - 1,
            part="parameters",
            name="",
            got=f"an error of {error:.3g}, {used:.0%} of the budget",
            expected="an error within the budget",
            allowed=f"{BUDGET:g} * {yardstick:.3g}, which is {whose}'s",
        )
        raise disagreement(found, ReplayCommand(scenario, trials.name))


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        model=models(buffers=False, dropout=0.0, routed=False, stopped=False),
        dtype="fp32",
        autocast=False,
        steps=1,
        accumulation=2,
        short_steps=(),
        clip=0.0,
        micro_batch=2,
        ragged=False,
        poison=(),
        zeroed=(),
        reads=(),
        optimizer=optimizers(name="sgd"),
    ),
    share=0.4,
    least=0.0,
)
def test_micro_steps_equal_one_large_batch(trials: Trials, scenario: Scenario) -> None:
    """A micro-steps of m samples give the gradient of one micro-step of A * m samples, within the error budget.

    Communication and accumulation in 16 bits round each micro-step, and one large batch only once. Therefore the
    yardstick is the larger error of one large batch and of the canonical trainer with as many micro-steps. Both are
    lucky now and then if a model has few elements, so an error within the rounding bound of the sum, which is known
    for SGD, is within the budget, too.
    """
    scenario = trials.nearest(scenario, "stage", "accumulation", "dtype", "clip")
    coarse = scenario.communication_dtype is not None or scenario.accumulator_dtype is not None
    assume(not coarse or scenario.optimizer.name == "sgd")  # an engine may have no SGD
    large = scenario.but(accumulation=1, micro_batch=4)
    assume(trials.offers(large))
    got, base = trials.run(scenario, _PARAMETERS)[0], trials.run(large, _PARAMETERS)[0]
    policies = trials.subject.policies
    reference = exact(large.but(stage=0), policies)
    rounded = canonical(scenario, frozenset(["parameters"]), magnitudes=True, policies=policies)
    error, yardstick = error_against(got, reference), max(error_against(each, reference) for each in (base, rounded))
    if coarse:
        bound = step_bound(scenario, _bound(rounded), reference.steps[0].parameters)
        assume(math.isfinite(bound))
        yardstick = max(yardstick, bound / BUDGET)
    _within_budget(trials, scenario, "one large batch", error, yardstick)


@drawn_at_each_stage(
    lambda stage: scenarios(
        stage=stage,
        model=DYADIC_MODELS,
        dtype="fp32",
        data="dyadic",
        autocast=False,
        steps=1,
        micro_batch=2,
        clip=0.0,
        poison=(),  # a step with an infinite sum is not exact
        optimizer=optimizers(name="sgd", lr=2.0**-4, weight_decay=0.0, momentum=0.0, **ONE_GROUP),
        communication_dtype=None,
        accumulator_dtype=None,
    ),
    of_bits=0.75,
    least=0.0,
)
def test_exact_data(trials: Trials, scenario: Scenario) -> None:
    """On dyadic data every sum is exact, so every engine gives the same bits but the signs of zeros, in any order."""
    scenario = trials.nearest(scenario, "stage", "data", "clip", "dtype", "communication_dtype")
    policies = trials.subject.policies
    expected = canonical(scenario, frozenset(["gradients", "parameters"]), policies=policies)
    assume(is_exact(expected, exact(scenario, policies)))
    # an engine may have zeros in place of a missing gradient, or copy a sum's first term, which may be -0
    may_differ = policies.inactive_gradient == "zero" or not trials.subject.promises_bits
    trials.agree(trials.run(scenario, _EXACT), expected, _EXACT, zeros_alike=may_differ)
