"""Trials: an engine under test on a pool of ranks, with the oracles beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import ALL, Keep, drive
from zerobench.judge.difference import ALL_PARTS, Part
from zerobench.judge.judgement import agree
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.ranks import Pool
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Subject

#: Seconds after which a Scenario hangs; the longest takes a few.
TIME_LIMIT = 60.0

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

    def run(self, scenario: Scenario, keep: Keep = GRADIENTS, *, subject: str | None = None) -> list[Trajectory]:
        """The Scenario on the engine (or another one): every rank's recording, in rank order.

        It holds ``keep`` of every step, and all states of the last.

        Raises:
            RankFault: a rank raised, died or hung.
        """
        self.ran += 1
        pool = self._pool_of(subject or self.name, scenario.world)
        return pool.run(train, subject or self.name, scenario, keep, world=scenario.world, timeout=TIME_LIMIT)

    def agree(
        self,
        got: Sequence[Trajectory],
        expected: Trajectory | Sequence[Trajectory],
        parts: Collection[Part] = ALL_PARTS,
    ) -> None:
        """Demand the same bits of every rank; see :func:`zerobench.judge.judgement.agree`.

        Evaluations are compared on rank 0 alone where the oracle stands for all ranks: buffers are each rank's own.
        """
        one_oracle = isinstance(expected, Trajectory)
        agree(got, expected, [part for part in parts if part != "evaluation" or not one_oracle], name=self.name)
        if one_oracle and "evaluation" in parts:
            agree(got[:1], expected, ["evaluation"], name=self.name)

    def run_beside_canonical(self, scenario: Scenario) -> tuple[list[Trajectory], Trajectory]:
        """The Scenario on the engine, and the canonical trainer's recording made meanwhile."""
        self.ran += 1
        pending = self._pool_of(self.name, scenario.world).submit(
            train, self.name, scenario, GRADIENTS, world=scenario.world, timeout=TIME_LIMIT
        )
        expected = canonical(scenario, ALL)
        for step in expected.steps[:-1]:
            step.parameters, step.model_parameters, step.optimizer_state = {}, {}, {}
        return pending.result(), expected

    def _pool_of(self, subject: str, world: int) -> Pool:
        """The session's ranks, or for an engine that needs a world of its own, ranks of just that many."""
        if not subjects.load(subject).whole_world:
            return self.pool
        return self._pools.setdefault(world, Pool(world))

    def close(self) -> None:
        """End the ranks that are no other's."""
        for pool in self._pools.values():
            pool.close()


def train(group: dist.ProcessGroup, subject: str, scenario: Scenario, keep: Keep) -> Trajectory:
    """One rank's part of a Scenario, with all states and an evaluation at its end."""
    return drive(subjects.load(subject), scenario, group, keep, last=ALL, evaluate=True)


@lru_cache(maxsize=64)
def exact(scenario: Scenario) -> Trajectory:
    """The float64 run of a Scenario."""
    return float64(scenario, ALL)
