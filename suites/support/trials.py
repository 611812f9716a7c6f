"""Trials: an engine under test on a pool of ranks, with the oracles beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import ALL, Keep, Run, drive
from zerobench.judge.difference import ALL_PARTS, Part
from zerobench.judge.judgement import across_ranks, disagreement
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.ranks import Pool, RankFault
from zerobench.ranks.pool import Pending
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Subject

#: Seconds after which a Scenario counts as hung; the longest takes a few, and many times that on a busy machine.
TIME_LIMIT = 120.0


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
        keep: Keep = frozenset(),
        subject: str | None = None,
    ) -> list[Trajectory]:
        """The Scenario on the engine (or another one): every rank's recording, in rank order.

        Each recording holds, of the states in ``parts``, those in ``keep`` of every step, and all of the last: most
        engines are not watched before it, except by the Scenario's own reads.

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
            Disagreement: they differ. If only a part was recorded, and a run that records every state of every step
                differs, too, the error has that run's first difference, which is nearer to the fault.
        """
        found = across_ranks(got, expected, parts)
        if found is not None and isinstance(expected, Trajectory):
            with suppress(RankFault):
                scenario = got[0].scenario
                found = across_ranks(self.run(scenario, parts, keep=ALL), canonical(scenario, ALL), parts) or found
        if found is not None:
            raise disagreement(found, self.name)

    def run_beside_canonical(
        self, scenario: Scenario, parts: Collection[Part] = ALL_PARTS
    ) -> tuple[list[Trajectory], Trajectory]:
        """The Scenario on the engine, and the canonical trainer's recording made meanwhile."""
        pending = self._submit(self.name, scenario, parts, frozenset())
        expected = canonical(scenario, last=ALL.intersection(parts))
        return pending.result(), expected

    def run_in_turns(self, scenarios: Sequence[Scenario]) -> list[list[Trajectory]]:
        """All but the last Scenario by turns, a step of each, on engines that are alive at once; then the last one.

        The recordings by Scenario and rank. All have the same world size.

        Raises:
            RankFault: a rank raised, died or hung.
        """
        self.ran += len(scenarios)
        world = scenarios[0].world
        pool = self._pool_of(self.name, world)
        by_rank = pool.run(train_in_turns, self.name, list(scenarios), world=world, timeout=TIME_LIMIT)
        return [list(runs) for runs in zip(*by_rank, strict=True)]

    def _submit(self, subject: str, scenario: Scenario, parts: Collection[Part], keep: Keep) -> Pending[Trajectory]:
        self.ran += 1
        asked = subject, scenario, keep.intersection(parts), ALL.intersection(parts), "evaluation" in parts
        return self._pool_of(subject, scenario.world).submit(train, *asked, world=scenario.world, timeout=TIME_LIMIT)

    def _pool_of(self, subject: str, world: int) -> Pool:
        """The session's ranks; if an engine needs a world of its own, ranks of that number."""
        if not subjects.load(subject).whole_world:
            return self.pool
        return self._pools.setdefault(world, Pool(world))

    def close(self) -> None:
        """End the ranks that belong to these Trials."""
        for pool in self._pools.values():
            pool.close()


def train(
    group: dist.ProcessGroup, subject: str, scenario: Scenario, keep: Keep, last: Keep = ALL, evaluate: bool = True
) -> Trajectory:
    """One rank's part of a Scenario: ``keep`` of every step, ``last`` of the last one, and an evaluation."""
    return drive(subjects.load(subject), scenario, group, keep, last=last, evaluate=evaluate)


def train_in_turns(group: dist.ProcessGroup, subject: str, scenarios: Sequence[Scenario]) -> list[Trajectory]:
    """One rank's part: a step of each Scenario but the last by turns; a finished one is closed at once."""
    alive = [Run(subjects.load(subject), each, group, last=ALL, evaluate=True) for each in scenarios[:-1]]
    done: dict[int, Trajectory] = {}
    while len(done) < len(alive):
        for number, run in enumerate(alive):
            if number not in done and not run.step():
                done[number] = run.recording()
                run.close()
    again = drive(subjects.load(subject), scenarios[-1], group, last=ALL, evaluate=True)
    return [*(done[number] for number in range(len(alive))), again]


@lru_cache(maxsize=64)
def exact(scenario: Scenario) -> Trajectory:
    """The float64 run of a Scenario."""
    return float64(scenario, ALL)
