"""Questions to the oracles; each rank of a pool answers its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

from zerobench.driver import Keep
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import CONTRACT, Policies


@dataclass(frozen=True)
class Question:
    """A Scenario for an oracle; the float64 run is told the skipped steps."""

    oracle: Literal["canonical", "float64"]
    scenario: Scenario
    skipped: tuple[bool, ...] = ()
    policies: Policies = CONTRACT


def answer_share(group: dist.ProcessGroup, asked: Sequence[Question]) -> list[Trajectory]:
    """Answer this rank's questions: on rank r number r, r + world, ..."""
    return [answer(question) for question in asked[dist.get_rank(group) :: dist.get_world_size(group)]]


def answer(question: Question) -> Trajectory:
    """An oracle's recording; its only states are the last step's parameters."""
    last: Keep = frozenset({"parameters"})
    if question.oracle == "canonical":
        return canonical(question.scenario, last=last, policies=question.policies)
    return float64(question.scenario, last=last, skipped=question.skipped, policies=question.policies)
