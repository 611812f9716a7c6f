"""``deepspeed.runtime.utils``: the bounds of the parts of a list."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


def prefix_sum_inc(weights: Iterable[Any]) -> list[Any]:
    """The sums up to each weight, this one included."""
    return list(itertools.accumulate(weights))


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """The bounds of parts of equal length; the first ones have one item more if there is a rest."""
    if num_items <= num_parts:
        return [min(part, num_items) for part in range(num_parts + 1)]
    length, rest = divmod(num_items, num_parts)
    return [part * length + min(part, rest) for part in range(num_parts + 1)]


class _Split(NamedTuple):
    """The best parts of the first items."""

    spread: float  # of the parts' sums
    largest: float
    smallest: float
    start: int  # of the last part


#: Parts that cannot be made.
_NONE = _Split(math.inf, math.inf, math.inf, 0)


def partition_balanced(weights: Sequence[float], num_parts: int) -> list[int]:
    """The bounds of parts whose sums differ little, as DeepSpeed's dynamic program finds them, ties included.

    For each number of items it keeps one way to make ``n`` parts, that of the smallest spread, and extends it to
    ``n + 1``. The result is not always the best one of all.
    """
    if len(weights) <= num_parts:
        return partition_uniform(len(weights), num_parts)
    until = [0.0, *itertools.accumulate(map(float, weights))]
    best = [_Split(0.0, 0.0, math.inf, 0), *[_NONE] * len(weights)]
    by_parts = []
    for parts in range(1, num_parts + 1):
        best = [_NONE if items < parts else _extended(best, until, items) for items in range(len(until))]
        by_parts.append(best)
    bounds = [len(weights)]
    for best in reversed(by_parts):
        bounds.append(best[bounds[-1]].start)
    return bounds[::-1]


def _extended(before: list[_Split], until: list[float], items: int) -> _Split:
    """The first ``items`` with one part more; among equal ones that with the shortest last part."""
    return min(
        (_with_part(before[start], until[items] - until[start], start) for start in reversed(range(items))),
        key=lambda split: split.spread,
    )


def _with_part(before: _Split, weight: float, start: int) -> _Split:
    largest, smallest = max(before.largest, weight), min(before.smallest, weight)
    return _Split(largest - smallest, largest, smallest, start)
