"""Judging recordings: equality, the description of a difference, and the error bounds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from zerobench.errors import Disagreement
from zerobench.judge.bounds import gamma, gradient_bound, step_bound
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import first_difference, same_bits
from zerobench.judge.judgement import (
    Judgement,
    across_ranks,
    agree_within,
    budget_used,
    disagreement,
    error_against,
    is_exact,
    is_yardstick,
    judge_recordings,
)
from zerobench.judge.outcomes import may_skip
from zerobench.judge.parts import Part
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Dtype, LossScale, Optimizer, Scenario
from zerobench.subject import Policies, State
from zerobench.workload.data import DTYPES

_NAN = float("nan")


def recorded(scenario: Scenario, rank: int = 0, subject: str = "reference") -> Trajectory:
    """Two steps of a model of three parameters, made up."""
    generator = torch.Generator().manual_seed(0)
    steps = []
    for _ in range(2):
        values = torch.randn(3, 4096, generator=generator)
        state = {"a": values[0].view(64, 64), "b": values[1].view(64, 64), "c": values[2]}
        losses = [torch.tensor(float(leaf)) for leaf in range(scenario.leaves)]
        own = losses if subject == "canonical" else losses[rank :: scenario.world]
        halves = {name: value / 2 for name, value in state.items()}
        steps.append(Step(own, 3.0, False, 1.0, gradients=halves, parameters=state))
    return Trajectory(subject, scenario, rank, steps)


def everyone(scenario: Scenario) -> list[Trajectory]:
    """All ranks' recordings, which are right."""
    return [recorded(scenario, rank) for rank in range(scenario.world)]


def message(got: list[Trajectory], scenario: Scenario) -> str:
    """The message about the difference from the canonical trainer."""
    parts: tuple[Part, ...] = ("losses", "gradients", "norm", "skipped", "parameters")
    found = across_ranks(got, recorded(scenario, subject="canonical"), parts)
    assert found
    return str(disagreement(found, ReplayCommand(scenario, "reference")))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [(0.0, 0.0, True), (0.0, -0.0, False), (_NAN, _NAN, True), (1.0, 1.0 + 2**-23, False), (math.inf, math.inf, True)],
)
def test_same_bits(left: float, right: float, same: bool) -> None:
    """NaN equals NaN, -0 is not +0, and one bit is a difference."""
    assert same_bits(torch.tensor([1.0, left]), torch.tensor([1.0, right])) is same


def test_another_dtype_or_shape_differs() -> None:
    """Equal values in another form are not the same bits."""
    zeros = torch.zeros(4)
    assert not same_bits(zeros, zeros.double())
    assert not same_bits(zeros, zeros.view(2, 2))


def test_right_recordings_agree() -> None:
    """Rank r's micro-step a is the canonical trainer's leaf a * N + r."""
    scenario = Scenario(world=3, accumulation=2)
    canonical = recorded(scenario, subject="canonical")
    assert all(first_difference(each, canonical) is None for each in everyone(scenario))


def test_a_lost_step_differs() -> None:
    """A recording that ends too early differs, though its steps agree."""
    scenario = Scenario(world=1)
    got, expected = recorded(scenario), recorded(scenario)
    del got.steps[1]
    assert "step 1, losses" in str(first_difference(got, expected))
    assert "step 1, losses" in str(first_difference(expected, got))


def test_a_difference_of_large_integers() -> None:
    """Above 2^53 fp64 does not hold every integer, and the difference is still exact."""
    scenario = Scenario(world=1)
    got, expected = recorded(scenario), recorded(scenario)
    got.steps[0].progress["count"], expected.steps[0].progress["count"] = torch.tensor(2**53), torch.tensor(2**53 + 1)
    assert "1 of 1 elements, by 1 at most" in str(first_difference(got, expected))


def test_what_is_missing_differs() -> None:
    """A missing gradient, and one that should be missing."""
    scenario = Scenario(world=1)
    got, expected = recorded(scenario), recorded(scenario)
    del got.steps[0].gradients["b"]
    assert "nothing" in str(first_difference(got, expected))
    assert "step 0, gradients, b" in str(first_difference(expected, got))


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (3.0, "which is N: not averaged over the ranks"),
        (1 / 3, "which is 1 / (N): averaged over the ranks twice"),
        (5.0, "which is A: not averaged over the micro-steps"),
        (15.0, "which is N * A: not averaged over the leaves"),
        (2.0, "which is 2: counted twice"),
        (1 + 1e-6, "equal up to rounding"),
        (0.0, "all zeros"),
        (_NAN, "not finite and should be"),
    ],
)
def test_hint_at_a_factor(factor: float, says: str) -> None:
    """If a gradient is a multiple of the right one, the hint names the divisor that was forgotten or used twice."""
    scenario = Scenario(world=3, accumulation=5)
    got = everyone(scenario)
    for each in got:
        each.steps[0].gradients["b"] = each.steps[0].gradients["b"] * factor
    said = message(got, scenario)
    assert says in said
    assert "step 0, gradients, b[0, 0]" in said
    assert "1 of 3 names differ: b" in said


def test_hint_at_a_rank_and_a_tail() -> None:
    """The values of one rank are off, and only at their end."""
    scenario = Scenario(world=3, chunk=1024)
    got = everyone(scenario)
    got[2].steps[1].parameters["c"] = got[2].steps[1].parameters["c"].clone()
    got[2].steps[1].parameters["c"][3072:] += 1
    said = message(got, scenario)
    assert "only the end differs, from element 3072 of 4096 (a multiple of the chunk, 1024)" in said
    assert "only rank 2 of 3 differs" in said
    assert "1024 of 4096 elements" in said
    assert said.splitlines()[-1].strip().startswith("reproduce zerobench replay '{")


def test_hint_at_what_did_not_move() -> None:
    """A parameter kept the value of the step before."""
    scenario = Scenario(world=1)
    got = everyone(scenario)
    got[0].steps[1].parameters["a"] = got[0].steps[0].parameters["a"]
    assert "did not move" in message(got, scenario)


def test_hint_at_the_second_group() -> None:
    """The parameters of exactly one group differ."""
    scenario = Scenario(world=1, optimizer=Optimizer(second_group=True))
    got = everyone(scenario)
    for name in ("a", "b"):
        got[0].steps[0].parameters[name] = got[0].steps[0].parameters[name] * 1.5
    assert "exactly the first parameter group differs" in message(got, scenario)


def test_hint_at_local_values() -> None:
    """Every rank has its own norm."""
    scenario = Scenario(world=2)
    got = everyone(scenario)
    for each in got:
        each.steps[0].norm = 1.0 + each.rank
    said = message(got, scenario)
    assert "every rank has another value" in said
    assert "the gradients agree: the norm's own sum is at fault" in said


def test_hint_at_stale_weights() -> None:
    """The parameters were right after a step, and the next loss is wrong."""
    scenario = Scenario(world=1)
    got = everyone(scenario)
    got[0].steps[1].losses = [torch.tensor(9.0)]
    assert "the parameters of step 0 agree: this forward used others" in message(got, scenario)


def double(trajectory: Trajectory) -> Trajectory:
    """The same in float64, as the float64 run records it."""
    for step in trajectory.steps:
        step.parameters = {name: value.double() for name, value in step.parameters.items()}
    return trajectory


def scaled(trajectory: Trajectory, factor: float) -> Trajectory:
    """With all parameters times a factor."""
    for step in trajectory.steps:
        step.parameters = {name: value * factor for name, value in step.parameters.items()}
    return trajectory


def test_the_error_budget() -> None:
    """A subject that promises no bits may err up to twice the yardstick's error; one that promises bits may not err."""
    scenario = Scenario(world=1)
    reference = double(recorded(scenario))
    canonical = recorded(scenario, subject="canonical")
    yardstick = error_against(scaled(recorded(scenario), 1 + 1e-5), reference)
    assert yardstick == pytest.approx(1e-5, rel=0.01)
    for factor, promises, right in ((1.9e-5, False, True), (2.1e-5, False, False), (1.9e-5, True, False)):
        got = [scaled(recorded(scenario), 1 + factor)]
        judgement = judge_recordings(got, canonical, reference, yardstick, name="x", promises_bits=promises)
        assert judgement.right is right
        assert judgement.budget == pytest.approx(factor / 2e-5, rel=0.01)
        assert not judgement.bitwise


def near(scenario: Scenario, change: Callable[[Step], object] = lambda step: None, step: int = 1) -> Judgement:
    """The judgement of recordings without a promise whose parameters are in the budget, a step of rank 1 changed."""
    got = [scaled(each, 1 + 1e-6) for each in everyone(scenario)]
    change(got[1].steps[step])
    canonical, reference = recorded(scenario, subject="canonical"), double(recorded(scenario, subject="canonical"))
    return judge_recordings(got, canonical, reference, 1e-5, name="x", promises_bits=False)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("losses", lambda step: step.losses.__setitem__(0, step.losses[0] / 2)),
        ("losses", lambda step: step.losses.__setitem__(0, torch.tensor(_NAN))),
        ("norm", lambda step: setattr(step, "norm", 3.1)),
        ("norm", lambda step: setattr(step, "norm", _NAN)),
        ("skipped", lambda step: setattr(step, "skipped", True)),
    ],
)
def test_an_outcome_that_rounding_does_not_explain_is_wrong(
    dtype: Dtype, part: Part, change: Callable[[Step], object]
) -> None:
    """Right parameters do not excuse the loss, the norm or the skipped step that the client was told."""
    scenario = Scenario(world=2, dtype=dtype)
    assert near(scenario).right
    found = near(scenario, change)
    assert not found.right
    assert found.difference is not None
    assert (found.difference.part, found.difference.step, found.difference.rank) == (part, 1, 1)


def test_an_outcome_may_have_roundings() -> None:
    """A loss that is some roundings off is right, a norm is optional, and a sum in fp16 may overflow on its way."""
    one = torch.finfo(torch.float32).eps
    assert near(Scenario(world=2), lambda step: step.losses.__setitem__(0, step.losses[0] * (1 + 4 * one))).right
    assert near(Scenario(world=2), lambda step: setattr(step, "norm", None)).right
    skipped = Step([], math.inf, True, 1.0)
    assert may_skip(skipped, Step([], 3.0, False, 1.0), Scenario(dtype="fp16"))
    assert not may_skip(skipped, Step([], 3.0, False, 1.0), Scenario(dtype="bf16"))


@pytest.mark.parametrize("promises", [False, True])
def test_another_shape_is_wrong(promises: bool) -> None:
    """If a subject returns a shard, the error is infinite, and the message has both shapes."""
    scenario = Scenario(world=2)
    got = everyone(scenario)
    shard = got[1].steps[1].parameters["b"].flatten()[:2048]
    got[1].steps[1].parameters["b"] = shard
    canonical, reference = recorded(scenario, subject="canonical"), double(recorded(scenario))
    judgement = judge_recordings(got, canonical, reference, 1e-5, name="x", promises_bits=promises)
    assert (judgement.right, judgement.error, judgement.budget, judgement.worst) == (False, math.inf, math.inf, "b")
    assert "where     step 1, parameters, b" in str(judgement)
    assert "got       torch.float32 [2048]\n  expected  torch.float32 [64, 64]" in str(judgement)


def test_a_budget_is_never_less_than_a_rounding() -> None:
    """If the yardstick happens to be exact, the budget is fp32's rounding; NaN exceeds it."""
    assert budget_used(2**-24, 0.0) == 0.5
    assert budget_used(_NAN, 1.0) == math.inf


def test_exact_data_ask_everyone_for_bits() -> None:
    """If no value was rounded, an error within the budget is still wrong."""
    scenario = Scenario(world=1, data="dyadic")
    canonical, reference = recorded(scenario, subject="canonical"), double(recorded(scenario))
    assert is_exact(canonical, reference)
    got = [scaled(recorded(scenario), 1 + 1e-6)]
    assert not judge_recordings(got, canonical, reference, 1.0, name="x", promises_bits=False).right
    assert not is_exact(canonical, scaled(reference, 1 + 1e-9))


def bounded(error: float) -> tuple[list[Trajectory], Trajectory, list[State]]:
    """Gradients that are off by a share of their bound."""
    scenario = Scenario(world=4, steps=1)
    got, expected = [recorded(scenario)], recorded(scenario, subject="canonical")
    magnitudes = {name: value.double().abs() for name, value in expected.steps[0].gradients.items()}
    bound = gradient_bound(scenario, magnitudes)
    for name, value in got[0].steps[0].gradients.items():
        got[0].steps[0].gradients[name] = value.double() + error * bound[name]
    return got, expected, [bound]


def test_gradients_within_their_bound() -> None:
    """The judge returns the used share; beyond the bound, the message has the allowed error."""
    assert agree_within(*bounded(0.5), name="x") == pytest.approx(0.5)
    with pytest.raises(Disagreement, match="allowed"):
        agree_within(*bounded(1.01), name="x")


def test_a_missing_gradient_of_zeros() -> None:
    """Zeros may be missing, and a missing gradient may be zeros, if the engine takes one for the other; no more."""
    scenario = Scenario(world=1)
    one, other = recorded(scenario), recorded(scenario, subject="canonical")
    for step in other.steps:
        del step.gradients["a"]
    bounds = [{name: torch.zeros_like(g) for name, g in step.gradients.items()} for step in other.steps]
    zero = Policies(inactive_gradient="zero")
    with pytest.raises(Disagreement, match="gradients, a"):
        agree_within([one], other, bounds, name="x", policies=zero)
    for step in one.steps:
        step.gradients["a"].zero_()
    assert agree_within([one], other, bounds, name="x", policies=zero) == 0
    with pytest.raises(Disagreement, match="gradients, a"):
        agree_within([one], other, bounds, name="x")


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float32, 2**-24), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_gamma(dtype: torch.dtype, unit: float) -> None:
    """Higham's, from each dtype's unit roundoff."""
    assert gamma(3, dtype) == 3 * unit / (1 - 3 * unit)
    assert gamma(2**24, dtype) == math.inf


def test_the_bound_of_an_underflow_is_that_of_its_dtype() -> None:
    """bf16 gradients of 2^-25 that are communicated in fp16 vanish, though bf16 has the coarser rounding."""
    scenario = Scenario(world=1, dtype="bf16", communication_dtype="fp16")
    gradient = torch.tensor([2.0**-25], dtype=torch.bfloat16)
    lost = gradient.double() - gradient.to(torch.float16).double()
    assert lost == 2.0**-25
    [bound] = gradient_bound(scenario, {"a": gradient.double()}).values()
    assert lost <= bound


def test_the_bound_of_an_underflow_with_a_scale_below_its_minimum() -> None:
    """The mean over two ranks of a scaled gradient of 2^-24 vanishes, if each rank first divides its own; a dynamic
    scale that begins at 1 multiplies nothing, whatever its minimum is."""
    scenario = Scenario(world=2, dtype="fp16", loss_scale=LossScale(initial_power=0, minimum=256.0))
    gradient = torch.tensor([2.0**-24], dtype=torch.float16)
    lost = gradient.double() - 2 * (gradient / 2).double()
    assert lost == 2.0**-24
    [bound] = gradient_bound(scenario, {"a": gradient.double()}).values()
    assert lost <= bound


def test_the_bound_holds_for_any_order_of_adding() -> None:
    """Sums of the same leaves in random orders, in fp32 and with every partial sum rounded to bf16."""
    generator = torch.Generator().manual_seed(0)
    wires: tuple[Dtype, ...] = ("fp32", "bf16")
    for wire in wires:
        scenario, dtype = Scenario(world=4, accumulation=2, communication_dtype=wire), DTYPES[wire]
        leaves = torch.randn(scenario.leaves, 2000, generator=generator).to(dtype)
        bound = gradient_bound(scenario, {"x": leaves.double().abs().mean(0)})["x"]
        exact = leaves.double().mean(0)
        for _ in range(20):
            total = torch.zeros(2000, dtype=dtype)
            for index in torch.randperm(scenario.leaves, generator=generator).tolist():
                total = total + leaves[index]
            assert bool(((total / scenario.leaves).double() - exact).abs().le(bound / 2).all())


def test_the_bound_of_a_step_has_the_rate_of_each_group() -> None:
    """The second group's rate is twice the first one's, and the bound is relative to all parameters' norm."""
    scenario = Scenario(optimizer=Optimizer("sgd", lr=0.5, second_group=True))
    gradients = {"weight": torch.full((2, 1), 3.0), "bias": torch.full((1,), 4.0)}
    moved = math.sqrt(2 * (0.5 * 3) ** 2 + (1.0 * 4) ** 2)
    assert step_bound(scenario, gradients, {"all": torch.full((4,), 2.0)}) == pytest.approx(moved / 4)
    assert step_bound(scenario, gradients | {"bias": torch.tensor([math.inf])}, gradients) == math.inf


@pytest.mark.parametrize(
    ("error", "fits"), [(1e-7, True), (1e-6, True), (1e-3, False), (math.inf, False), (_NAN, False)]
)
def test_a_wrong_yardstick(error: float, fits: bool) -> None:
    """An error of torch DDP that no right engine makes does not raise the budget."""
    assert is_yardstick(error, 6e-8, Scenario()) is fits
