"""Points: the places at which a mutant's bug can show first, and the place that a failure names."""

from __future__ import annotations

from dataclasses import dataclass

from zerobench.errors import Disagreement, Finding
from zerobench.ranks import RankFault


@dataclass(init=False)
class Points:
    """One of ``parts`` and, if they are given, this name in it, this step and this rank."""

    parts: tuple[str, ...]
    name: str | None
    step: int | None
    rank: int | None

    def __init__(self, *parts: str, name: str | None = None, step: int | None = None, rank: int | None = None) -> None:
        self.parts, self.name, self.step, self.rank = parts, name, step, rank

    def match(self, found: Finding) -> bool:
        """Whether a failure names one of these places."""
        wanted = ((self.name, found.name), (self.step, found.step), (self.rank, found.rank))
        return found.part in self.parts and all(value in (None, there) for value, there in wanted)


#: Any value that a step, a reading, a load or an evaluation can have wrong, and an error.
VALUES = Points("losses", "gradients", "norm", "skipped", "loss_scale", "parameters", "model_parameters",
                "optimizer_state", "progress", "reads", "evaluation", "raised")  # fmt: skip


def matches(at: Points | tuple[Points, ...], found: Finding) -> bool:
    """Whether a failure's place is one of several."""
    return any(each.match(found) for each in (at if isinstance(at, tuple) else (at,)))


def place_of(failure: Disagreement | RankFault) -> Finding:
    """The place that a failure names."""
    return failure.finding if isinstance(failure, Disagreement) else failure.place
