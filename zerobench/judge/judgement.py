"""Judge: is a subject's recording right, to the bit or within its error budget?

Three measures, each of all ranks at once: :func:`across_ranks`, bit for bit; :func:`agree_within`, gradients element
by element inside a bound derived from the sums' condition; :func:`judge_recordings`, which requires equal bits if an
engine promises them, and otherwise an error against the float64 run of at most twice a yardstick's: torch DDP's, in
the same precision.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zerobench.errors import Disagreement
from zerobench.judge import hints
from zerobench.judge.bounds import excess, gradient_bound
from zerobench.judge.command import ReplayCommand
from zerobench.judge.difference import (
    Difference,
    describe,
    first_difference,
    located,
    same_bits,
    value_at,
)
from zerobench.judge.outcomes import MOST, first_wrong_outcome
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import CONTRACT, Policies, State
from zerobench.workload.data import DTYPES

__all__ = [
    "Difference",
    "Judgement",
    "across_ranks",
    "agree_within",
    "budget_used",
    "disagreement",
    "error_against",
    "first_difference",
    "gradient_bound",
    "is_exact",
    "is_yardstick",
    "judge_recordings",
]

#: If an engine promises no bits, its error against the float64 run may be this multiple of the yardstick's.
BUDGET = 2.0
#: An fp32 result cannot be required to be nearer than one rounding of each parameter.
_UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2


@dataclass(frozen=True)
class Judgement:
    """Whether a subject is right in a Scenario; ``str()`` has the reason if it is not."""

    subject: str  # as --subject takes it
    scenario: Scenario
    right: bool
    error: float  # against the float64 run, at the last step; the worst rank's
    budget: float  # the share of the error budget used
    worst: str  # the parameter that holds most of the error
    difference: Difference | None  # from the canonical trainer

    @property
    def bitwise(self) -> bool:
        """Equal to the canonical trainer."""
        return self.difference is None

    def __str__(self) -> str:
        share = f"error {self.error:.3g} against the float64 run, {self.budget:.0%} of the budget"
        if self.difference is None:
            return f"{self.subject}: right, bit for bit ({share})"
        if self.right:
            return f"{self.subject}: right within the error budget ({share})"
        verdict = f"{self.subject}: WRONG ({share}; most of it in {self.worst})"
        return f"{verdict}\n{self.difference}\n{ReplayCommand(self.scenario, self.subject)}"


def judge_recordings(
    got: Sequence[Trajectory],
    canonical: Trajectory,
    reference64: Trajectory,
    yardstick: float,
    *,
    name: str,
    promises_bits: bool,
    parts: Collection[Part] = ALL_PARTS,
) -> Judgement:
    """Judge one subject's recordings, one of each rank.

    Equal bits are required if the engine promises them, or if the data are exact (:func:`is_exact`); otherwise an error
    within the budget, and losses, norms and skipped steps that rounding explains (zerobench/judge/outcomes.py).
    ``yardstick`` is the :func:`error_against` of torch DDP or, if it is missing, of the canonical trainer.
    """
    difference = across_ranks(got, canonical, parts)
    errors = [error_against(each, reference64) for each in got]
    budget = budget_used(max(errors), yardstick)
    bits_due = promises_bits or is_exact(canonical, reference64)
    told = None if bits_due or difference is None else first_wrong_outcome(got, canonical, reference64, parts)
    right = difference is None or (not bits_due and budget <= 1 and told is None)
    if told is not None and budget <= 1:
        difference = told
    elif not right and not bits_due:  # rounding is not the cause: show the cause if it can be found
        half_the_digits = torch.finfo(DTYPES[canonical.scenario.dtype]).eps ** 0.5
        difference = across_ranks(got, canonical, parts, half_the_digits) or difference
    worst = _worst(got[errors.index(max(errors))], reference64)
    return Judgement(name, got[0].scenario, right, max(errors), budget, worst, difference)


def disagreement(difference: Difference, command: ReplayCommand) -> Disagreement:
    """The error with a difference and the command that finds it again."""
    return Disagreement(f"{difference}\n{command}", difference)


def agree_within(
    got: Sequence[Trajectory],
    expected: Trajectory,
    bounds: Sequence[State],
    *,
    name: str,
    policies: Policies = CONTRACT,
) -> float:
    """Require the gradients of every step within their bound, one :func:`gradient_bound` for each step.

    If the engine takes a missing gradient for zeros, zeros may be missing. Returns the largest used share of a bound.

    Raises:
        Disagreement: if a gradient is out of its bound; it has the first one.
    """
    if policies.inactive_gradient == "zero":
        got, expected = [_filled(each, expected) for each in got], _filled(expected, got[0])
    for each, (step, bound) in itertools.product(got, enumerate(bounds)):
        found = _first_excess(each, expected, step, bound)
        if found is not None:
            raise disagreement(found, ReplayCommand(found.scenario, name, bound=True))
    shares = (
        _share(each.steps[step].gradients[key], expected.steps[step].gradients[key], bound[key])
        for each, (step, bound) in itertools.product(got, enumerate(bounds))
        for key in bound
    )
    return max(shares, default=0.0)


def _filled(trajectory: Trajectory, other: Trajectory) -> Trajectory:
    """The recording with zeros for the gradients that only the other one has."""
    steps = [
        replace(step, gradients={name: torch.zeros_like(g) for name, g in beside.gradients.items()} | step.gradients)
        for step, beside in zip(trajectory.steps, other.steps, strict=True)
    ]
    return replace(trajectory, steps=steps)


def error_against(trajectory: Trajectory, reference64: Trajectory) -> float:
    """The relative error of all fp32 parameters after the last step, in the 2-norm, against the float64 run's.

    Infinite if names or shapes are not the same.
    """
    expected = reference64.steps[-1].parameters
    apart = sum(_squares(trajectory, reference64).values())
    return math.sqrt(apart / (sum(float(p.square().sum()) for p in expected.values()) or 1.0))


def _squares(trajectory: Trajectory, reference64: Trajectory) -> dict[str, float]:
    """Each parameter's sum of squared errors."""
    got, expected = trajectory.steps[-1].parameters, reference64.steps[-1].parameters
    return {name: _square(got.get(name), expected.get(name)) for name in expected | got}


def _square(got: Tensor | None, expected: Tensor | None) -> float:
    """The sum of squared errors; infinite if one is missing or has another shape."""
    if got is None or expected is None or got.shape != expected.shape:
        return math.inf
    return float((got.double() - expected).square().sum())


def _worst(trajectory: Trajectory, reference64: Trajectory) -> str:
    squares = _squares(trajectory, reference64)
    return max(squares, key=squares.__getitem__, default="no parameter")


def is_yardstick(error: float, canonical: float, scenario: Scenario) -> bool:
    """Whether an error of torch DDP can be that of a right engine: at most a hundred times the canonical trainer's.

    Either of them can be lucky. But if DDP is wrong, or does not offer the Scenario, the budget must not
    grow with its error. NaN is no yardstick.
    """
    return error <= MOST * max(canonical, torch.finfo(DTYPES[scenario.dtype]).eps / 2)


def budget_used(error: float, yardstick: float) -> float:
    """The share of the budget that ``error`` uses; it fails above one, and NaN counts as infinite."""
    share = error / (BUDGET * max(yardstick, _UNIT_ROUNDOFF))
    return share if not math.isnan(share) else math.inf


def is_exact(canonical: Trajectory, reference64: Trajectory) -> bool:
    """Whether the data are dyadic and no sum was rounded, so that every right engine has the same bits.

    The gradients are compared as well if they are recorded: their mean over three leaves may be rounded.
    """
    if canonical.scenario.data != "dyadic":
        return False
    return all(
        _equal_in_double(step.parameters, reference.parameters)
        and _equal_in_double(step.gradients, reference.gradients)
        for step, reference in zip(canonical.steps, reference64.steps, strict=True)
    )


def _equal_in_double(rounded: State, exact: State) -> bool:
    """Whether the values that both have are equal."""
    return all(torch.equal(value.double(), exact[name]) for name, value in rounded.items() if name in exact)


def across_ranks(
    got: Sequence[Trajectory],
    expected: Trajectory | Sequence[Trajectory],
    parts: Collection[Part],
    beyond: float = 0.0,
) -> Difference | None:
    """The first :func:`first_difference` of any rank, with the pattern that the ranks' differences share.

    Two runs of different worlds are compared on rank 0, because the leaves of the other ranks differ.
    """
    others = [expected] * len(got) if isinstance(expected, Trajectory) else expected
    compared = len(got) if len(got) == len(others) else 1
    pairs = list(zip(got[:compared], others[:compared], strict=True))
    found = [each for pair in pairs if (each := first_difference(*pair, parts, beyond)) is not None]
    if not found:
        return None
    first = min(found, key=lambda d: (math.inf if d.step is None else d.step, ALL_PARTS.index(d.part), d.rank))
    return replace(first, hints=(*first.hints, *_of_ranks(first, pairs)))


def _of_ranks(first: Difference, pairs: Sequence[tuple[Trajectory, Trajectory]]) -> Iterator[str]:
    """The pattern of the ranks' values at one place, if it is a value that all ranks share."""
    if first.part in ("losses", "evaluation"):
        return iter(())
    values = [[value_at(first, each) for each in pair] for pair in pairs]
    differing = [got.rank for (got, _), both in zip(pairs, values, strict=True) if not _same(*both)]
    return hints.of_ranks(differing, len(pairs), _distinct([got for got, _ in values]))


def _distinct(values: Sequence[Tensor | None]) -> int:
    """The number of different values, bit for bit."""
    seen: list[Tensor | None] = []
    for value in values:
        if not any(_same(value, other) for other in seen):
            seen.append(value)
    return len(seen)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else same_bits(one, other)


def _first_excess(got: Trajectory, expected: Trajectory, step: int, bound: State) -> Difference | None:
    """The first gradient of a step that is missing or out of its bound."""
    ours, theirs = got.steps[step].gradients, expected.steps[step].gradients
    for name in theirs | ours:
        left, right = ours.get(name), theirs.get(name)
        found = Difference(
            got.subject,
            expected.subject,
            got.scenario,
            got.rank,
            step,
            "gradients",
            name,
            *(describe(left), describe(right)),
        )
        if left is None or right is None or left.shape != right.shape:
            return found
        allowed = bound.get(name, torch.zeros(left.shape))  # a gradient of no leaf has no error
        outside = excess(left, right, allowed)
        if outside.any():
            found = located(found, left, right, outside)
            return replace(found, allowed=f"{float(allowed[found.index]):.3g}")
    return None


def _share(got: Tensor, expected: Tensor, bound: Tensor) -> float:
    shares = (got.double() - expected.double()).abs() / bound
    return float(shares.nan_to_num(0.0).max()) if shares.numel() else 0.0
