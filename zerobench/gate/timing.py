"""Timing: whether the head is slower than the base, from rounds that measure both in alternation.

A process alternates steps of every case with compute-only's. The measure is the multiple of compute-only's time: from
process to process it varies a third as much as seconds, because both are slowed alike (docs/reference/gate.md).

A round measures base and head, each in a fresh process; the ratio head to base is a pair. The order is reversed from
round to round (base, head, head, base, base, ...), so the last of a round and the first of the next are consecutive
processes of one side: their ratio is a pair without a change. All of these pairs are the A/A run, which shows the
random variation of a ratio on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

TimeVerdict = Literal["SAME", "FASTER", "SLOWER", "UNSURE"]
Side = Literal["base", "head"]
#: The time of a step by case, of one fresh process, as a multiple of compute-only's.
Multiples = Mapping[str, float]

#: If a ratio is closer to one than this, it is not reported as a change.
EFFECT = 0.05
#: Numbers of pairs for a verdict; more only if a case is unsure. Odd, so that the median is one of the pairs.
PAIRS = range(7, 33, 2)
#: Confidence of the intervals; with seven pairs, all seven must be on one side.
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Round:
    """One measurement of each side, consecutive."""

    base: Multiples
    head: Multiples


@dataclass(frozen=True)
class Timed:
    """The verdict of a case's pairs; ``ratio``, ``low`` and ``high`` are head to base, ``floor`` as :data:`EFFECT`."""

    case: str
    verdict: TimeVerdict
    ratio: float  # the median of the pairs
    low: float  # its interval
    high: float
    floor: float  # the largest distance of the A/A run's interval from one
    base: float  # median multiple
    head: float
    pairs: int


def measure(
    run: Callable[[Side], Multiples], effect: float = EFFECT, stops: Sequence[int] = PAIRS
) -> tuple[list[Timed], list[Round]]:
    """Measure rounds until every case has a verdict other than UNSURE, or the last of ``stops`` is reached.

    ``run`` measures one side in a fresh process. The one-time costs of a first process (caches, compiled kernels) are
    paid before the first round.
    """
    run("base"), run("head")
    rounds: list[Round] = []
    timed: list[Timed] = []
    for stop in stops:
        rounds.extend(_round(run, index) for index in range(len(rounds), stop))
        timed = list(time_verdicts(rounds, effect))
        if all(each.verdict != "UNSURE" for each in timed):
            break
    return timed, rounds


def _round(run: Callable[[Side], Multiples], index: int) -> Round:
    """The base first in rounds of even index."""
    if index % 2:
        head, base = run("head"), run("base")
    else:
        base, head = run("base"), run("head")
    return Round(base, head)


def time_verdicts(rounds: Sequence[Round], effect: float = EFFECT) -> Iterator[Timed]:
    """The verdict on every case that both sides measured in every round."""
    everywhere = [side.keys() for each in rounds for side in (each.base, each.head)]
    for case in [name for name in rounds[0].base if all(name in keys for keys in everywhere)]:
        base, head = [each.base[case] for each in rounds], [each.head[case] for each in rounds]
        pairs = [math.log(b / a) for a, b in zip(base, head, strict=True)]
        ratio, (low, high) = median(pairs), interval(pairs)
        floor = max(map(abs, interval(nothing(base, head))))
        yield Timed(
            case,
            time_verdict(ratio, low, high, floor, math.log1p(effect)),
            math.exp(ratio),
            math.exp(low),
            math.exp(high),
            math.expm1(floor),
            median(base),
            median(head),
            len(rounds),
        )


def nothing(base: Sequence[float], head: Sequence[float]) -> list[float]:
    """Logarithms of the A/A run's ratios, later to earlier: heads after even rounds, bases after odd ones.

    The first is left out if their number is even.
    """
    sides = [(base if index % 2 else head)[index : index + 2] for index in range(len(base) - 1)]
    ratios = [math.log(later / earlier) for earlier, later in sides]
    return ratios[1 - len(ratios) % 2 :]


def time_verdict(ratio: float, low: float, high: float, floor: float, effect: float) -> TimeVerdict:
    """From logarithms of ratios.

    A change requires a median beyond both the effect and the floor, and an interval that excludes one. SAME requires
    an interval within the effect: if the machine is noisy, the verdict is UNSURE, not SAME.
    """
    if abs(ratio) > max(effect, floor) and low * high > 0:
        return "SLOWER" if ratio > 0 else "FASTER"
    return "SAME" if -effect <= low and high <= effect else "UNSURE"


def median(values: Sequence[float]) -> float:
    """The middle one of an odd number of values."""
    return sorted(values)[len(values) // 2]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The percentile bootstrap's interval of the median of an odd number of values, without resampling.

    The median of n values drawn with replacement from n is at most the k-th smallest of them if and only if more than
    n / 2 draws are; each is with probability k / n (Efron, The Jackknife, the Bootstrap and Other Resampling Plans,
    1982, section 10.3). So the bootstrap's distribution is a binomial sum, and nothing here is random.
    """
    ordered, n = sorted(values), len(values)
    below = next(k for k in range(1, n + 1) if _at_most(k, n) > (1 - CONFIDENCE) / 2)
    return ordered[below - 1], ordered[n - below]


def _at_most(k: int, n: int) -> float:
    """The probability that the bootstrap's median is at most the k-th smallest of n values."""
    return sum(math.comb(n, j) * (k / n) ** j * (1 - k / n) ** (n - j) for j in range(n // 2 + 1, n + 1))
