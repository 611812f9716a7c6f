"""Hints: likely causes of a difference, guessed from its pattern and worded as an observation.

A hint is given only if the recordings show its observation; ``suites/meta/test_hints.py`` has both cases of each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.judge.bounds import gamma, relative_bound
from zerobench.scenario import Scenario
from zerobench.workload.groups import group_of, specs

#: A constant ratio is accepted if every element agrees with it this well, relative to the largest.
_ALIKE = 1e-5
#: The parts that are sums over the leaves.
_SUMS = ("gradients", "norm", "optimizer_state")
#: Another order of summation changes at least one of this number of elements.
_SEVERAL = 10
#: Roundings in fp32 of a parameter and of its move.
_MOVED = 4
#: The parts that a group's hyperparameters change.
_UPDATED = ("optimizer_state", "parameters", "model_parameters")


@dataclass(frozen=True)
class Pair:
    """One value that differs; ``before`` is the right value of a step earlier, if it is recorded."""

    scenario: Scenario
    part: str
    got: Tensor
    expected: Tensor
    differs: Tensor  # bool, of their shape
    loss_scale: float | None  # of the step; None if the two recordings have different ones
    before: Tensor | None = None
    summed: int = 0  # of a norm, the elements of its gradients if both recordings have the same ones


def of_pair(pair: Pair) -> Iterator[str]:
    """The pattern of one tensor's difference; a decision, which is no floating-point number, has none."""
    if not pair.differs.numel() or not pair.got.is_floating_point():
        return
    for look in (_not_a_number, _zeros, _signed_zeros, _stale, _ratio, _rounding, _move, _span):
        hint = look(pair)
        if hint:
            yield hint
            return


def of_names(
    part: str,
    differing: Collection[str],
    shapes: Mapping[str, torch.Size],
    scenario: Scenario,
    active: Collection[str] = (),
) -> Iterator[str]:
    """The property that a part's differing names share; ``shapes`` are those of all its names.

    ``active`` are the parameters that received a gradient; empty if it is not recorded. No other parameter moves.
    """
    if len(shapes) < 2 or len(differing) == len(shapes):
        return
    spec = scenario.optimizer
    groups: list[set[str]] = [set() for _ in specs(spec)]
    for name, shape in shapes.items():
        parameter = name.rpartition(".")[0] if part == "optimizer_state" else name
        if shape.numel() and (not active or parameter in active):
            groups[group_of(spec, name, len(shape))].add(name)
    alone = sum(map(bool, groups)) == 1
    for which, members in zip(("first", "second", "third"), groups, strict=False):
        grouped = part in _UPDATED and not alone and len(members) > 1
        if grouped and set(differing) == members:
            yield f"exactly the {which} parameter group differs: its hyperparameters"
            return
    yield f"{len(differing)} of {len(shapes)} names differ: {_few(differing)}"


def of_ranks(differing: Collection[int], world: int, values: int) -> Iterator[str]:
    """The ranks that differ in a value that all ranks share; together they hold ``values`` different ones."""
    if values < 2:
        return
    if len(differing) < world:
        verb = "rank {} of {} differs" if len(differing) == 1 else "ranks {} of {} differ"
        yield f"only {verb.format(_few(differing), world)} here: the ranks disagree with each other"
    elif values == world:
        yield "every rank has another value: a local value stands in place of one that all ranks share"


def _few(names: Collection[object]) -> str:
    shown = sorted(names, key=str)
    return ", ".join(map(str, shown[:4])) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _not_a_number(pair: Pair) -> str | None:
    fresh = ~torch.isfinite(pair.got) & torch.isfinite(pair.expected)
    if fresh.any():
        return f"{int(fresh.sum())} elements are not finite and should be: padding or memory never written"
    return None


def _zeros(pair: Pair) -> str | None:
    if not pair.got.any() and pair.expected.any():
        return "all zeros: never written, dropped, or cleared too early"
    return None


def _signed_zeros(pair: Pair) -> str | None:
    if torch.equal(pair.got, pair.expected):
        return "only the sign of zeros differs: -0 must be added to +0, not copied"
    return None


def _stale(pair: Pair) -> str | None:
    if pair.before is not None and pair.before.shape == pair.got.shape and torch.equal(pair.before, pair.got):
        return "did not move: the value of the step before, stale or not updated"
    return None


def _rounding(pair: Pair) -> str | None:
    """A sum of the leaves of which many elements differ, and none by more than its roundings may.

    The terms of an element are not recorded: their magnitude is taken for that of the element or of the usual one. If
    the bound is so wide that a leaf could be missing within it, a difference within it tells nothing. A norm of the
    same gradients has the roundings of its own sum alone, in fp32 at worst.
    """
    bound = 2 * gamma(pair.summed, torch.float32) if pair.summed else relative_bound(pair.scenario)
    if pair.part not in _SUMS or bound * pair.scenario.leaves >= 1:
        return None
    if _SEVERAL * int(pair.differs.sum()) < pair.differs.numel():
        return None
    expected = pair.expected.double()
    terms = expected.abs().clamp(min=float(expected.square().mean().sqrt()))
    if ((pair.got.double() - expected).abs() <= bound * terms).all():
        return "equal up to rounding: another order of summation, or another rounding"
    return None


def _ratio(pair: Pair) -> str | None:
    """A gradient or momentum that is a constant multiple of the right value in two elements or more."""
    got, expected = pair.got.double(), pair.expected.double()
    square = float((expected * expected).sum())
    if not _is_sum(pair) or not math.isfinite(square) or int((expected != 0).sum()) < 2:
        return None
    ratio = float((got * expected).sum()) / square
    if float((got - ratio * expected).abs().max()) > _ALIKE * abs(ratio) * float(expected.abs().max()):
        return None
    if abs(ratio - 1) <= 2 * _ALIKE:  # nearer to one than the accuracy of the ratio
        return None
    return f"{ratio:.6g} times the expected everywhere{_reading(ratio, pair)}"


def _move(pair: Pair) -> str | None:
    """A parameter that moves by a multiple of the right move, or that is off by a multiple of its value before."""
    if pair.part != "parameters" or pair.before is None or pair.before.shape != pair.got.shape:
        return None
    got, expected, before = pair.got.double(), pair.expected.double(), pair.before.double()
    roundings = _MOVED * torch.finfo(torch.float32).eps * float(torch.stack([got, expected, before]).abs().max())
    if (times := _multiple(got - expected, expected - before, roundings)) is not None:
        return f"it moves by {1 + times:.4g} times the expected everywhere: the learning rate, or a step count"
    if (times := _multiple(got - expected, before, roundings)) is not None:
        return f"it is off by {times:.4g} times its value before the step: the weight decay"
    return None


def _multiple(off: Tensor, of: Tensor, roundings: float) -> float | None:
    """The factor between two tensors, up to roundings that are small beside it; None if there is none, or if the
    elements of ``of`` have about one magnitude, so that much is a multiple of them."""
    square = float((of * of).sum())
    if not 0 < square < math.inf or float(of.abs().min()) > 0.5 * float(of.abs().max()):
        return None
    times = float((off * of).sum()) / square
    fits = float((off - times * of).abs().max()) <= roundings
    return times if fits and float(off.abs().max()) > 100 * roundings else None


def _is_sum(pair: Pair) -> bool:
    """Whether the value is proportional to a sum over leaves, or its update by one: parameters are not."""
    return "parameters" not in pair.part and bool(pair.expected.any())


def _reading(ratio: float, pair: Pair) -> str:
    """The possible meanings of a ratio, all of them; a factor of one has no meaning."""
    found = list(_meanings(ratio, pair))
    if len(found) < 2:
        return "".join(f", which is {name}: {meaning}" for name, meaning in found)
    return ", which is " + ", or ".join(f"{name} ({meaning})" for name, meaning in found)


def _meanings(ratio: float, pair: Pair) -> Iterator[tuple[str, str]]:
    scenario = pair.scenario
    known = {
        "N": (scenario.world, "averaged over the ranks"),
        "A": (scenario.accumulation, "averaged over the micro-steps"),
        "N * A": (scenario.leaves if min(scenario.world, scenario.accumulation) > 1 else 1, "averaged over the leaves"),
        "the loss scale": (pair.loss_scale or 1, "divided by the loss scale"),
        "2": (2, "halved"),
    }
    for name, (factor, done) in known.items():
        if factor != 1 and math.isclose(ratio, factor, rel_tol=_ALIKE):
            yield name, "counted twice" if name == "2" else f"not {done}"
        if factor != 1 and math.isclose(ratio, 1 / factor, rel_tol=_ALIKE):
            yield f"1 / ({name})", f"{done} twice" if name != "2" else done


def _span(pair: Pair) -> str | None:
    """Differences that fill one end of the tensor, row after row."""
    flat = pair.differs.flatten()
    where = flat.nonzero().flatten().tolist()
    first, last, size = where[0], where[-1], flat.numel()
    if len(where) == size or 2 * len(where) < last - first + 1:
        return None
    if first > 0 and last == size - 1:
        return (
            f"only the end differs, from element {first} of {size}{_grid(first, pair)}: a tail dropped or not updated"
        )
    if first == 0 and last < size - 1:
        return f"only the beginning differs, up to element {last} of {size}{_grid(last + 1, pair)}"
    return None


def _grid(border: int, pair: Pair) -> str:
    chunk = pair.scenario.chunk
    return f" (a multiple of the chunk, {chunk})" if border % chunk == 0 else ""
