"""Questions to the oracles, as the ranks of a pool answer them: each rank its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

from zerobench.driver import Keep
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario


@dataclass(frozen=True)
class Question:
    """A Scenario for an oracle; the float64 run is told which steps were skipped."""

    oracle: Literal["canonical", "float64"]
    scenario: Scenario
    skipped: tuple[bool, ...] = ()


def answer_share(group: dist.ProcessGroup, asked: Sequence[Question]) -> list[Trajectory]:
    """Answer the questions that fall to this rank: number r, r + world, ..."""
    return [answer(question) for question in asked[dist.get_rank(group) :: dist.get_world_size(group)]]


def answer(question: Question) -> Trajectory:
    """An oracle's recording with no states but the last step's parameters."""
    keep: Keep = frozenset({"parameters"})
    if question.oracle == "canonical":
        found = canonical(question.scenario, keep)
    else:
        found = float64(question.scenario, keep, skipped=question.skipped)
    for step in found.steps[:-1]:
        step.parameters = {}
    return found
