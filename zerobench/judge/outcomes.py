"""Outcomes: the losses, norms and skipped steps that an engine without a promise of bits tells its client.

Its parameters are held to an error budget (zerobench/judge/judgement.py). They may be right although the client reads a
loss or a norm that is not that of the step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from zerobench.judge.difference import Difference, describe, located, same_bits, values_in
from zerobench.judge.parts import Part
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.workload.data import DTYPES

#: The error of a right engine may be this multiple of another one's.
MOST = 100.0
#: The relative error of a right norm: a sum of many squares in fp32 loses digits.
_NORM = 0.01


def roundings(scenario: Scenario) -> float:
    """The relative error of so many roundings in the Scenario's dtype as a right engine may be apart by."""
    return MOST * torch.finfo(DTYPES[scenario.dtype]).eps / 2


def first_wrong_outcome(
    got: Sequence[Trajectory], canonical: Trajectory, reference64: Trajectory, parts: Collection[Part]
) -> Difference | None:
    """The first loss, norm or skipped step of any rank that rounding does not explain."""
    allowed = {part: _allowed(part, canonical, reference64) for part in ("losses", "norm")}
    return next((found for each in got for found in _wrong(each, canonical, allowed, parts)), None)


def may_skip(step: Step, right: Step, scenario: Scenario) -> bool:
    """Whether a step is skipped as the canonical trainer's, or because its sum has overflowed in fp16 on its way."""
    overflowed = step.norm is None or not math.isfinite(step.norm)
    return step.skipped == right.skipped or (step.skipped and scenario.dtype == "fp16" and overflowed)


def _wrong(
    got: Trajectory, canonical: Trajectory, allowed: dict[str, float], parts: Collection[Part]
) -> Iterator[Difference]:
    for index, (step, right) in enumerate(zip(got.steps, canonical.steps, strict=False)):
        losses = _beyond(got, index, "losses", step, right, allowed["losses"])
        yield from losses if "losses" in parts else ()
        if "skipped" in parts and not may_skip(step, right, got.scenario):
            yield _difference(got, index, "skipped", "", torch.tensor(step.skipped), torch.tensor(right.skipped))
        if step.skipped != right.skipped:  # the steps after it begin with other weights
            return
        if "norm" in parts and None not in (step.norm, right.norm):
            yield from _beyond(got, index, "norm", step, right, allowed["norm"])


def _beyond(got: Trajectory, index: int, part: Part, step: Step, right: Step, allowed: float) -> Iterator[Difference]:
    ours, theirs = (values_in(part, each, index, got) for each in (step, right))
    for name in theirs | ours:
        value, expected = ours.get(name), theirs.get(name)
        if value is None or expected is None or not _near(value, expected, allowed):
            yield replace(_difference(got, index, part, name, value, expected), allowed=f"{allowed:.3g}")


def _near(value: Tensor, expected: Tensor, allowed: float) -> bool:
    if value.shape != expected.shape:
        return False
    return same_bits(value, expected) or bool((value.double() - expected.double()).abs() <= allowed)


def _allowed(part: Part, canonical: Trajectory, reference64: Trajectory) -> float:
    """A multiple of the canonical trainer's own error against the float64 run, or of a rounding of the values."""
    rounding = _NORM if part == "norm" else roundings(canonical.scenario)
    both = zip(canonical.steps, reference64.steps, strict=False)
    pairs = [pair for steps in both for pair in zip(*(_told(part, step) for step in steps), strict=False)]
    finite = [pair for pair in pairs if all(map(math.isfinite, pair))]
    return max((max(MOST * abs(one - other), rounding * abs(other)) for one, other in finite), default=0.0)


def _told(part: Part, step: Step) -> list[float]:
    """The losses of all leaves of an oracle's step, or its norm."""
    if part == "losses":
        return [float(loss) for loss in step.losses]
    return [] if step.norm is None else [step.norm]


def _difference(
    got: Trajectory, index: int, part: Part, name: str, value: Tensor | None, expected: Tensor | None
) -> Difference:
    which = got.subject, "canonical", got.scenario, got.rank
    found = Difference(*which, index, part, name, describe(value), describe(expected))
    if value is None or expected is None or value.shape != expected.shape or value.dtype != expected.dtype:
        return found
    return located(found, value, expected, torch.ones_like(value, dtype=torch.bool))
