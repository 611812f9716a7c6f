"""Replaying: rounds that were measured elsewhere as pytest-benchmark's own.

Its fixture times a function, one benchmark after the other; here subjects alternate within each round, in other
processes. So the rounds are measured first. Then its timer is a clock that only moves if a function moves it by a
round's seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Clock:
    """A timer of pytest-benchmark."""

    now = 0.0

    def __call__(self) -> float:
        """The seconds it shows."""
        return self.now


CLOCK = Clock()


def replay(benchmark: Any, seconds: Sequence[float]) -> None:
    """Give the fixture of a test that is marked ``pytest.mark.benchmark(timer=CLOCK)`` these rounds, exactly."""
    rounds = iter(seconds)

    def start() -> None:
        CLOCK.now = 0.0

    def measured() -> None:
        CLOCK.now = next(rounds, 0.0)

    benchmark.pedantic(measured, setup=start, rounds=len(seconds), iterations=1)
