"""Hints: likely causes of a difference, guessed from its pattern and worded as an observation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.scenario import Scenario

#: A constant ratio is believed when every element agrees with it this well, relative to the largest.
_ALIKE = 1e-5


@dataclass(frozen=True)
class Pair:
    """One value that differs; ``before`` is the right value of a step earlier, if it is known."""

    scenario: Scenario
    part: str
    got: Tensor
    expected: Tensor
    differs: Tensor  # bool, of their shape
    loss_scale: float
    before: Tensor | None = None


def of_pair(pair: Pair) -> Iterator[str]:
    """What one tensor's difference looks like."""
    if not pair.differs.numel():
        return
    for look in (_not_a_number, _zeros, _signed_zeros, _stale, _ratio, _span):
        hint = look(pair)
        if hint:
            yield hint
            return


def of_names(differing: Collection[str], shapes: Mapping[str, torch.Size], scenario: Scenario) -> Iterator[str]:
    """What the names of a part that differ have in common; ``shapes`` are those of all its names."""
    if len(shapes) < 2 or len(differing) == len(shapes):
        return
    first = {name for name, shape in shapes.items() if len(shape) >= 2}
    groups = {"first": first, "second": shapes.keys() - first}
    for which, members in groups.items():
        if scenario.optimizer.second_group and len(members) > 1 and set(differing) == set(members):
            yield f"exactly the {which} parameter group differs: its learning rate or weight decay"
            return
    yield f"{len(differing)} of {len(shapes)} names differ: {_few(differing)}"


def of_ranks(differing: Collection[int], world: int, alike: bool) -> Iterator[str]:
    """Which ranks differ; ``alike`` if all of them hold the same wrong value."""
    if len(differing) < world:
        yield f"only rank {_few(differing)} of {world} differs: the ranks disagree with each other"
    elif world > 1 and not alike:
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


def _ratio(pair: Pair) -> str | None:
    """A gradient, norm, loss or momentum that is a constant multiple of the right value."""
    got, expected = pair.got.double(), pair.expected.double()
    square = float((expected * expected).sum())
    if "parameters" in pair.part or not math.isfinite(square) or square == 0:
        return None
    ratio = float((got * expected).sum()) / square
    if float((got - ratio * expected).abs().max()) > _ALIKE * abs(ratio) * float(expected.abs().max()):
        return None
    if abs(ratio - 1) < 10 * _ALIKE:
        return "equal up to rounding: another order of summation, or another rounding"
    return f"{ratio:.6g} times the expected everywhere{_reading(ratio, pair)}"


def _reading(ratio: float, pair: Pair) -> str:
    """What a ratio may mean; only readings that differ from one are tried."""
    scenario = pair.scenario
    known = {
        "N": (scenario.world, "averaged over the ranks"),
        "A": (scenario.accumulation, "averaged over the micro-steps"),
        "N * A": (scenario.leaves, "averaged over the leaves"),
        "the loss scale": (pair.loss_scale, "divided by the loss scale"),
        "2": (2, "halved"),
    }
    for name, (factor, done) in known.items():
        if factor != 1 and math.isclose(ratio, factor, rel_tol=_ALIKE):
            return f", which is {name}: " + ("counted twice" if name == "2" else f"not {done}")
        if factor != 1 and math.isclose(ratio, 1 / factor, rel_tol=_ALIKE):
            return f", which is 1 / ({name}): {done} twice"
    return ""


def _span(pair: Pair) -> str | None:
    """Differences that fill one end of the tensor, in memory order."""
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
