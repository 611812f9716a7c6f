"""Runner: trains subjects on real ranks and finds the first bit in which two runs differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch.distributed as dist

from zerobench.bench.following import first_step_that_does_not_follow
from zerobench.bench.rank_tasks import refusals
from zerobench.bench.resuming import resume_at, save_after, save_other
from zerobench.driver import ALL, Keep, Run, drive
from zerobench.errors import UsageError
from zerobench.judge.command import ReplayCommand, between
from zerobench.judge.difference import Difference
from zerobench.judge.judgement import across_ranks
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.judge.zeros import with_zeros_alike
from zerobench.oracles.canonical_trainer import canonical
from zerobench.ranks import Pending, Pool, RankFault
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import CONTRACT, Policies
from zerobench.subjects import load
from zerobench.workload.client_values import given_back, saved_client_state

T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """The states that a recording holds: of ``parts``, those in ``keep`` of every step, and all of the last step.

    The run reads no other states, except in the Scenario's own reads: an engine may be right only if each step is read.
    A wrong bit of an earlier step makes bits of the last one wrong.
    """

    parts: Set[Part] = frozenset(ALL_PARTS)
    keep: Keep = frozenset()

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
    command: ReplayCommand | str

    def result(self) -> list[T]:
        """The task's result on each rank, in rank order; waits for it.

        Raises:
            RankFault: if a rank raised, died or hung.
        """
        with told(self.command):
            return self.pending.result()


@contextmanager
def told(command: ReplayCommand | str) -> Iterator[None]:
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
        """Train a subject; each rank records the states of ``reading``."""
        command = between((subject, scenario), parts=in_order(reading.parts))
        return self.ask(command, train, reading)

    def ask(self, command: ReplayCommand, task: Callable[..., T], *args: Any) -> Told[T]:
        """Run ``task(group, subject, scenario, *args)`` for the command's subject and Scenario."""
        self.ran += 1
        subject, scenario = command.subject, command.scenario
        pool = self._pool_of(subject, scenario)
        asked = subject, scenario, *args
        pending = pool.submit(task, *asked, world=scenario.world, timeout=self.limit(scenario))
        return Told(pending, command)

    def difference(self, command: ReplayCommand, reading: Reading) -> Difference | None:
        """The first bit in which a run differs from the canonical trainer or from another run, on any rank."""
        if command.beside is not None:
            return self._difference_in_turns(command, reading, command.beside)
        if command.saved_by is not None:
            return self._difference_when_resumed(command, reading, command.saved_by)
        got = self.submit(command.subject, command.scenario, reading).result()
        expected: Trajectory | list[Trajectory]
        if command.other is None:
            expected = self.canonical(command, reading)
        else:
            expected = self.submit(*command.other, reading).result()
        return compared(command, got, expected, reading.parts)

    def _difference_in_turns(self, command: ReplayCommand, reading: Reading, beside: Scenario) -> Difference | None:
        runs = zip(*self.ask(command, train_in_turns, reading, beside).result(), strict=True)
        expected = self._alone(command, reading)
        found = (across_ranks(each, expected, reading.parts) for each in runs)
        return next(filter(None, found), None)

    def _difference_when_resumed(
        self, command: ReplayCommand, reading: Reading, saved_by: Scenario
    ) -> Difference | None:
        _, got = self.resumed(command, reading, saved_by)
        whole = self.submit(command.subject, command.scenario, reading).result()
        expected = [replace(each, steps=each.steps[saved_by.steps :]) for each in whole]
        given = saved_client_state(command.scenario, saved_by.steps)
        for each in expected:  # a whole run gets nothing back; an engine that keeps no client's state has none
            each.steps[0].progress |= given_back(given, given)
        return compared(command, got, expected, reading.parts)

    def resumed(
        self, command: ReplayCommand, reading: Reading, saved_by: Scenario
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        """The recordings of the run that saves, and of the one that goes on from there.

        In every second Scenario, by the seed, its ranks have begun the directory with another state; in every fourth by
        the name that the reference engine gives to the one that it saves next.
        """
        saving, every = ReplayCommand(saved_by, command.subject), reading.every
        with tempfile.TemporaryDirectory() as directory:
            if saved_by.seed % 2:
                tag = f"global_step{saved_by.steps}" if saved_by.seed % 4 == 1 else ""
                self.ask(command, save_other, Path(directory), tag).result()
            before = self.ask(saving, save_after, Path(directory), every).result()
            asked = saved_by.steps, Path(directory), every, reading.last, "evaluation" in reading.parts
            after = self.ask(command, resume_at, *asked).result()
        return before, after

    def first_that_does_not_follow(self, command: ReplayCommand) -> Difference | None:
        """The first value that does not follow from the step before, also over a resume."""
        reading, before = Reading(ALL, ALL), list[Step]()
        if command.saved_by is None:
            got = self.submit(command.subject, command.scenario, reading).result()
        else:
            saved, got = self.resumed(command, reading, command.saved_by)
            before = saved[0].steps
        asked = got, load(command.subject).policies, before
        [found] = self.pool.run(_follow, *asked, world=1, timeout=self.limit(command.scenario))
        return found

    def _alone(self, command: ReplayCommand, reading: Reading) -> Trajectory | list[Trajectory]:
        """The recordings of an uninterrupted run: the canonical trainer's or, without a promise, its own."""
        if load(command.subject).promises_bits:
            return self.canonical(command, reading)
        return self.submit(command.subject, command.scenario, reading).result()

    def canonical(self, command: ReplayCommand, reading: Reading) -> Trajectory:
        """The canonical trainer's recording, made on a rank: bits depend on the number of threads."""
        scenario, policies = command.scenario, load(command.subject).policies
        [found] = self.pool.run(_canonical, scenario, reading, policies, world=1, timeout=self.limit(scenario))
        return found

    def _pool_of(self, subject: str, scenario: Scenario) -> Pool:
        world = scenario.world
        if not load(subject).needs_whole_world(scenario) or self.pool.world == world:
            return self.pool
        return self._pools.setdefault(world, Pool(world, self.pool.device, idle=self.pool.idle))

    def close(self) -> None:
        """End the ranks that belong to this object."""
        for pool in self._pools.values():
            pool.close()


def compared(
    command: ReplayCommand,
    got: Sequence[Trajectory],
    expected: Trajectory | Sequence[Trajectory],
    parts: Collection[Part],
) -> Difference | None:
    """The first bit of any rank that differs, as the command compares."""
    if not command.zeros_alike:
        return across_ranks(got, expected, parts)
    policies = load(command.subject).policies
    right = [expected] * len(got) if isinstance(expected, Trajectory) else expected
    one, other = ([with_zeros_alike(each, policies) for each in those] for those in (got, right))
    return across_ranks(one, other, parts)


def in_order(parts: Collection[Part]) -> tuple[Part, ...]:
    """The parts as a step makes them."""
    return tuple(part for part in ALL_PARTS if part in parts)


def train(group: dist.ProcessGroup, subject: str, scenario: Scenario, reading: Reading) -> Trajectory:
    """One rank's part of a Scenario. The recording has the subject's name as it was given."""
    evaluate = "evaluation" in reading.parts
    with refusals(subject):
        found = drive(load(subject), scenario, group, reading.every, last=reading.last, evaluate=evaluate)
    return replace(found, subject=subject)


def train_canonically(scenario: Scenario, reading: Reading, policies: Policies = CONTRACT) -> Trajectory:
    """The canonical trainer's recording, with the states of a reading alone."""
    return canonical(scenario, reading.every, last=reading.last, policies=policies)


def _canonical(group: dist.ProcessGroup, scenario: Scenario, reading: Reading, policies: Policies) -> Trajectory:
    return train_canonically(scenario, reading, policies)


def train_in_turns(
    group: dist.ProcessGroup, subject: str, scenario: Scenario, reading: Reading, beside: Scenario
) -> list[Trajectory]:
    """One rank's part of a Scenario and of another one by turns, a step of each, and then of the Scenario once more.

    The recordings of both runs of the Scenario. An engine is closed as soon as its Scenario ends. If half of the
    Scenario's seed is odd, a turn of the second engine comes within the step of the first, after its first backward.
    """
    evaluate = "evaluation" in reading.parts
    with refusals(subject):
        own = partial(Run, load(subject), scenario, group, reading.every, last=reading.last, evaluate=evaluate)
        other = partial(Run, load(subject), beside, group)
        first, second = (other, own) if scenario.seed % 2 else (own, other)  # an engine may take from an earlier one
        runs = [first(), second()]
        done: list[Trajectory] = []
        while runs:
            ended = _nested(runs) if scenario.seed // 2 % 2 else [run for run in runs if not run.step()]
            runs = [run for run in runs if run not in ended]
            done += [run.end() for run in ended]
    [got] = [each for each in done if each.scenario is scenario]
    return [replace(got, subject=subject), train(group, subject, scenario, reading)]


def _nested(runs: Sequence[Run]) -> list[Run]:
    """Make a step of each run, of the second one within that of the first; those that have ended, in order."""
    ended: list[Run] = []
    inner = list(runs[1:])

    def take_turn(phase: str = "backward") -> None:
        if inner and phase == "backward":
            other = inner.pop()
            ended.extend([] if other.step() else [other])

    return [*([] if runs[0].step(take_turn) else [runs[0]]), *ended]


def _follow(
    group: dist.ProcessGroup, got: list[Trajectory], policies: Policies, before: list[Step]
) -> Difference | None:
    """On a rank, whose number of threads the bits depend on."""
    return first_step_that_does_not_follow(got, policies, before)
