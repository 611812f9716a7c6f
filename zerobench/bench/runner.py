"""Runner: trains subjects on real ranks and finds the first bit in which two runs differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch.distributed as dist

from zerobench.bench.rank_tasks import refusals
from zerobench.driver import ALL, Keep, drive
from zerobench.errors import UsageError
from zerobench.judge.command import ReplayCommand, between
from zerobench.judge.difference import Difference
from zerobench.judge.judgement import across_ranks
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.oracles.canonical_trainer import canonical
from zerobench.ranks import Pending, Pool, RankFault
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subjects import load

T = TypeVar("T")

#: Kept of every step; the other states only of the last step, because a wrong bit of an earlier step leads into it.
GRADIENTS: Keep = frozenset(["gradients"])


@dataclass(frozen=True)
class Reading:
    """What a recording holds: of the states in ``parts``, those in ``keep`` of every step, and all of the last."""

    parts: Set[Part] = frozenset(ALL_PARTS)
    keep: Keep = GRADIENTS

    @property
    def every(self) -> Keep:
        """The states of every step."""
        return self.keep.intersection(self.parts)

    @property
    def last(self) -> Keep:
        """Those of the last step."""
        return ALL.intersection(self.parts)


@dataclass(frozen=True)
class Told(Generic[T]):
    """A task that the ranks run; if they fail, the message ends with the command that runs it again."""

    pending: Pending[T]
    command: ReplayCommand

    def result(self) -> list[T]:
        """The task's result on each rank, in rank order; waits for it.

        Raises:
            RankFault: if a rank raised, died or hung.
        """
        with told(self.command):
            return self.pending.result()


@contextmanager
def told(command: ReplayCommand) -> Iterator[None]:
    """Inside, a failure of the ranks says how to run it again."""
    try:
        yield
    except RankFault as fault:
        fault.end_with(str(command))
        raise
    except UsageError as error:
        error.add_note(str(command))  # the message itself is one line
        raise


class Runner:
    """Runs Scenarios on a pool. If an engine needs a world of its own, it gets ranks of that number.

    ``limit`` is the time that a Scenario may take, in seconds; ``ran`` counts the Scenarios.
    """

    def __init__(self, pool: Pool, limit: Callable[[Scenario], float]) -> None:
        self.pool, self.limit = pool, limit
        self._pools: dict[int, Pool] = {}
        self.ran = 0

    def submit(self, subject: str, scenario: Scenario, reading: Reading) -> Told[Trajectory]:
        """Train a subject; each rank records what ``reading`` says."""
        command = between((subject, scenario), parts=in_order(reading.parts))
        return self.ask(command, train, reading)

    def ask(self, command: ReplayCommand, task: Callable[..., T], *args: Any) -> Told[T]:
        """Run ``task(group, subject, scenario, *args)`` for the command's subject and Scenario."""
        self.ran += 1
        subject, scenario = command.subject, command.scenario
        pool = self._pool_of(subject, scenario.world)
        asked = subject, scenario, *args
        pending = pool.submit(task, *asked, world=scenario.world, timeout=self.limit(scenario))
        return Told(pending, command)

    def difference(self, command: ReplayCommand, reading: Reading) -> Difference | None:
        """The first bit in which a run differs from the canonical trainer or from another run, on any rank."""
        got = self.submit(command.subject, command.scenario, reading).result()
        expected: Trajectory | list[Trajectory]
        if command.other is None:
            expected = self.canonical(command.scenario, reading)
        else:
            expected = self.submit(*command.other, reading).result()
        return across_ranks(got, expected, reading.parts)

    def canonical(self, scenario: Scenario, reading: Reading) -> Trajectory:
        """The canonical trainer's recording, made on a rank: bits depend on the number of threads."""
        [found] = self.pool.run(_canonical, scenario, reading, world=1, timeout=self.limit(scenario))
        return found

    def _pool_of(self, subject: str, world: int) -> Pool:
        if not load(subject).whole_world or self.pool.world == world:
            return self.pool
        return self._pools.setdefault(world, Pool(world))

    def close(self) -> None:
        """End the ranks that belong to this object."""
        for pool in self._pools.values():
            pool.close()


def in_order(parts: Collection[Part]) -> tuple[Part, ...]:
    """The parts as a step makes them."""
    return tuple(part for part in ALL_PARTS if part in parts)


def train(group: dist.ProcessGroup, subject: str, scenario: Scenario, reading: Reading) -> Trajectory:
    """One rank's part of a Scenario. The recording has the subject's name as it was given."""
    evaluate = "evaluation" in reading.parts
    with refusals(subject):
        found = drive(load(subject), scenario, group, reading.every, last=reading.last, evaluate=evaluate)
    return replace(found, subject=subject)


def train_canonically(scenario: Scenario, reading: Reading) -> Trajectory:
    """The canonical trainer's recording, with the states of a reading alone."""
    found = canonical(scenario, reading.last)
    for step in found.steps[:-1]:
        for state in ALL - reading.every:
            setattr(step, state, {})
    return found


def _canonical(group: dist.ProcessGroup, scenario: Scenario, reading: Reading) -> Trajectory:
    return train_canonically(scenario, reading)
