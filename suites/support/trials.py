"""Trials: an engine under test on a pool of ranks, with the oracles beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import ALL, Keep, drive
from zerobench.judge.difference import ALL_PARTS, Difference, Part
from zerobench.judge.judgement import across_ranks, disagreement
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.ranks import Pool, RankFault
from zerobench.ranks.pool import Pending
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Subject

#: Seconds after which a Scenario hangs; the longest takes a few, and many times that on a machine busy with much else.
TIME_LIMIT = 120.0

#: Kept of every step; the other states of the last one only, into which a wrong bit of an earlier step leads.
GRADIENTS: Keep = frozenset(["gradients"])


class Trials:
    """Runs Scenarios on one engine; ``ran`` counts them.

    Raises:
        UsageError: there is no such engine.
    """

    def __init__(self, pool: Pool, subject: str) -> None:
        self.pool, self.name = pool, subject
        self.subject: type[Subject] = subjects.load(subject)
        self._pools: dict[int, Pool] = {}
        self.ran = 0

    def offers(self, scenario: Scenario) -> bool:
        """Whether the engine offers the Scenario at all."""
        return self.subject.unsupported(scenario) is None

    def run(
        self,
        scenario: Scenario,
        parts: Collection[Part] = ALL_PARTS,
        *,
        keep: Keep = GRADIENTS,
        subject: str | None = None,
    ) -> list[Trajectory]:
        """The Scenario on the engine (or another one): every rank's recording, in rank order.

        Of the states in ``parts``, it holds those in ``keep`` of every step, and all of the last.

        Raises:
            RankFault: a rank raised, died or hung.
        """
        return self._submit(subject or self.name, scenario, parts, keep).result()

    def agree(
        self,
        got: Sequence[Trajectory],
        expected: Trajectory | Sequence[Trajectory],
        parts: Collection[Part] = ALL_PARTS,
    ) -> None:
        """Demand the same bits of every rank, ``expected`` being the canonical trainer's or each rank's own.

        Raises:
            Disagreement: they differ; if the Scenario was recorded in part only and differs again in a run that records
                every state of every step, with the first difference of that run, which is nearer to the fault.
        """
        found = _first(got, expected, parts)
        if found is not None and isinstance(expected, Trajectory):
            with suppress(RankFault):
                scenario = got[0].scenario
                found = _first(self.run(scenario, parts, keep=ALL), canonical(scenario, ALL), parts) or found
        if found is not None:
            raise disagreement(found, self.name)

    def run_beside_canonical(
        self, scenario: Scenario, parts: Collection[Part] = ALL_PARTS
    ) -> tuple[list[Trajectory], Trajectory]:
        """The Scenario on the engine, and the canonical trainer's recording made meanwhile."""
        pending = self._submit(self.name, scenario, parts, GRADIENTS)
        expected = canonical(scenario, ALL)
        for step in expected.steps[:-1]:
            step.parameters, step.model_parameters, step.optimizer_state = {}, {}, {}
        return pending.result(), expected

    def _submit(self, subject: str, scenario: Scenario, parts: Collection[Part], keep: Keep) -> Pending[Trajectory]:
        self.ran += 1
        asked = subject, scenario, keep.intersection(parts), ALL.intersection(parts), "evaluation" in parts
        return self._pool_of(subject, scenario.world).submit(train, *asked, world=scenario.world, timeout=TIME_LIMIT)

    def _pool_of(self, subject: str, world: int) -> Pool:
        """The session's ranks, or for an engine that needs a world of its own, ranks of just that many."""
        if not subjects.load(subject).whole_world:
            return self.pool
        return self._pools.setdefault(world, Pool(world))

    def close(self) -> None:
        """End the ranks that are no other's."""
        for pool in self._pools.values():
            pool.close()


def _first(
    got: Sequence[Trajectory], expected: Trajectory | Sequence[Trajectory], parts: Collection[Part]
) -> Difference | None:
    """The first difference of any rank; evaluations are compared on rank 0 alone if one oracle stands for all ranks,
    because buffers are each rank's own."""
    if not isinstance(expected, Trajectory):
        return across_ranks(got, expected, parts)
    found = across_ranks(got, expected, [part for part in parts if part != "evaluation"])
    return found or across_ranks(got[:1], expected, [part for part in parts if part == "evaluation"])


def train(
    group: dist.ProcessGroup, subject: str, scenario: Scenario, keep: Keep, last: Keep = ALL, evaluate: bool = True
) -> Trajectory:
    """One rank's part of a Scenario: ``keep`` of every step, ``last`` of the last one, and an evaluation."""
    return drive(subjects.load(subject), scenario, group, keep, last=last, evaluate=evaluate)


@lru_cache(maxsize=64)
def exact(scenario: Scenario) -> Trajectory:
    """The float64 run of a Scenario."""
    return float64(scenario, ALL)
