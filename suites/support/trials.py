"""Trials: an engine under test on a pool of ranks, with the oracles beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self, TypeVar

import pytest
import torch
from hypothesis import reject

import zerobench
from zerobench import findings, subjects
from zerobench.bench.following import first_step_that_does_not_follow
from zerobench.bench.runner import Reading, Runner, compared, in_order, train_canonically
from zerobench.driver import ALL, Keep
from zerobench.errors import Disagreement
from zerobench.findings import KnownFinding
from zerobench.judge.command import ReplayCommand, between
from zerobench.judge.difference import Difference
from zerobench.judge.judgement import across_ranks, disagreement
from zerobench.judge.parts import ALL_PARTS, Part
from zerobench.machine.products import fix_gpu, fix_products
from zerobench.oracles.canonical_trainer import float64
from zerobench.ranks import Pool, RankFault, preload
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import CONTRACT, Policies, Subject
from zerobench.suites.support.drawing import (
    give_up,
    note_beside,
    note_known,
    note_nearest,
    note_refusal,
    pass_over,
    refuse,
)
from zerobench.suites.support.offered import nearest, nearest_unknown, obstacle
from zerobench.suites.support.own_settings import set_up
from zerobench.suites.support.rerun import pytest_command

T = TypeVar("T")

#: Seconds after which a Scenario counts as hung; the longest takes a few, and many times that on a busy machine.
TIME_LIMIT = 120.0
#: Seconds in which no rank does anything after which it counts as hung, however busy the machine is.
IDLE = 6.0


def prepare(device: str = "cpu") -> None:
    """Let the oracles, which run in this process, compute as the ranks do, and let the ranks of all Trials start with
    the modules that nearly all of them use. Call it before the first product of matrices."""
    fix_products()
    if device == "cuda":
        fix_gpu()
    torch.set_num_threads(1)
    preload("zerobench.bench.runner", "zerobench.oracles.questions", "zerobench.subjects.reference")


def four_ranks(device: str = "cpu") -> Pool:
    """Ranks for many Scenarios, once the kernels are there: a rank that waits until another process has built them
    would look like one that hangs."""
    zerobench.prepare_kernels()  # this module imports nothing of the engine: automatic mutants import it anew
    return Pool(4, device, idle=IDLE)


class Trials:
    """Runs Scenarios on one engine; ``ran`` counts them.

    Raises:
        UsageError: there is no such engine.
    """

    def __init__(self, pool: Pool, subject: str) -> None:
        self.pool, self.name = pool, subject
        self.subject: type[Subject] = subjects.load(subject)
        self.runner = Runner(pool, lambda scenario: TIME_LIMIT)
        self._hung = False

    @classmethod
    def of(cls, pool: Pool, subject: type[Subject]) -> Self:
        """The trials of a subject's class."""
        return cls(pool, f"{subject.__module__}:{subject.__name__}")

    @property
    def ran(self) -> int:
        """The number of Scenarios that the ranks were given."""
        return self.runner.ran

    def offers(self, scenario: Scenario, subject: str | None = None, *, cost: str = "") -> bool:
        """Whether the engine (or another one) offers the Scenario and no known finding, of this cost or of training,
        describes it.

        If that holds for no draw, the test skips with the most frequent reason.
        """
        found = obstacle(subjects.load(subject or self.name), scenario, cost)
        if isinstance(found, KnownFinding):
            note_known(found)
        elif found is not None:
            note_refusal(found)
        return found is None

    def skip_unless_it_saves(self) -> None:
        """Skip the test, with the engine's own reason, if the engine has no save() and load()."""
        if reason := self.subject.lacks(Scenario(steps=2, resumes=(1,))):
            pytest.skip(reason)

    def nearest(self, scenario: Scenario, *fixed: str) -> Scenario:
        """The Scenario with some of the engine's own settings, and as few fields changed as the engine demands, none of
        ``fixed``; no known finding describes it. Drop the draw if every change is refused, or known."""
        unset = nearest(self.subject, scenario, fixed)
        if isinstance(unset, str):
            give_up(unset)
        found = set_up(self.subject, unset)
        note_nearest(scenario, unset, found, self.subject.not_offered(scenario) or "")
        if (finding := findings.matching(self.subject, found)) is None:
            return found
        note_known(finding)
        beside = nearest_unknown(self.subject, found, fixed)
        if beside is None:
            pass_over()
        note_beside(found, beside)
        return beside

    def _set_aside_known(self, scenario: Scenario, subject: type[Subject]) -> None:
        """Drop the draw if a known finding describes the Scenario."""
        if (finding := findings.matching(subject, scenario)) is not None:
            note_known(finding)
            reject()

    def offered(self, scenarios: Sequence[Scenario], field: str) -> list[Scenario]:
        """Those of several Scenarios, which differ in one field, that the engine offers and no known finding describes;
        drop the draw if there are no two."""
        obstacles = {each: obstacle(self.subject, each) for each in scenarios}
        found = [each for each, obstructs in obstacles.items() if obstructs is None]
        if len(found) < 2:
            listed, some = (", ".join(str(getattr(each, field)) for each in those) for those in (scenarios, found))
            first = next(each for each in obstacles.values() if each is not None)
            why = f"the known finding {first.slug}" if isinstance(first, KnownFinding) else first
            refuse(f"{self.name} offers only {field} {some} of {listed}: {why}" if found else why)
        return found

    def run(
        self,
        scenario: Scenario,
        parts: Collection[Part] = ALL_PARTS,
        *,
        keep: Keep = frozenset(),
        subject: str | None = None,
    ) -> list[Trajectory]:
        """The Scenario on the engine (or another one): every rank's recording, in rank order.

        Each recording holds, of the states in ``parts``, those in ``keep`` of every step, and all of the last. If a
        known finding describes the Scenario, which a test may have made from the one drawn, the draw is dropped.

        Raises:
            RankFault: a rank raised, died or hung.
        """
        self._set_aside_known(scenario, subjects.load(subject or self.name))
        return self.runner.submit(subject or self.name, scenario, Reading(frozenset(parts), keep)).result()

    def ask(self, command: ReplayCommand, task: Callable[..., T], *args: Any) -> list[T]:
        """``task(group, subject, scenario, *args)`` on every rank.

        A command without options runs the Scenario alone, and not the task: then only the present test runs it again.

        Raises:
            RankFault: a rank raised, died or hung; its message ends with the command.
        """
        told, plain = self.runner.ask(command, task, *args), ReplayCommand(command.scenario, command.subject)
        again = pytest_command(plain.scenario, plain.subject) if command == plain else command
        return replace(told, command=again).result()

    def agree(
        self,
        got: Sequence[Trajectory],
        expected: Trajectory | Sequence[Trajectory],
        parts: Collection[Part] = ALL_PARTS,
        *,
        zeros_alike: bool = False,
    ) -> None:
        """Demand the same bits of every rank of two runs, ``expected`` being the canonical trainer's or each rank's.

        With ``zeros_alike`` -0 is +0 (zerobench/judge/zeros.py).

        Raises:
            Disagreement: they differ; see :meth:`wrong`.
        """
        other = None if isinstance(expected, Trajectory) else (expected[0].subject, expected[0].scenario)
        command = between((got[0].subject, got[0].scenario), other, in_order(parts))
        command = replace(command, zeros_alike=zeros_alike)
        found = compared(command, got, expected, parts)
        if found is not None:
            raise self.wrong(found, command)

    def follows(self, scenario: Scenario) -> None:
        """Demand that each step of a run is right for the state before it: bit for bit, or within a derived bound.

        Raises:
            Disagreement: a step is not.
        """
        found = first_step_that_does_not_follow(self.run(scenario, ALL, keep=ALL), self.subject.policies)
        if found is not None:
            raise disagreement(found, ReplayCommand(scenario, self.name, each_step=True))

    def agree_in_one_run(self, got: Trajectory, expected: Trajectory, parts: Collection[Part]) -> None:
        """Demand the same bits of two ranks, or of two steps, of one run.

        Raises:
            Disagreement: they differ; see :meth:`wrong`.
        """
        found = across_ranks([got], [expected], parts)
        if found is not None:
            raise self.wrong(found, ReplayCommand(got.scenario, got.subject))

    def wrong(self, found: Difference, command: ReplayCommand) -> Disagreement:
        """The error with a difference and the command that finds it again.

        If the command's runs differ if they record every state of every step, the error has their first difference,
        which is nearer to the fault.
        """
        judged_by_bits = self.subject.promises_bits or command != ReplayCommand(command.scenario, command.subject)
        if judged_by_bits and not self._hung:
            with suppress(RankFault):
                found = self._again(command) or found
        return disagreement(found, command)

    def _again(self, command: ReplayCommand) -> Difference | None:
        try:
            return self.runner.difference(command, Reading(frozenset(command.parts), ALL))
        except RankFault as fault:
            self._hung |= fault.kind == "timeout"
            raise

    def run_beside_canonical(
        self, scenario: Scenario, parts: Collection[Part] = ALL_PARTS
    ) -> tuple[list[Trajectory], Trajectory]:
        """The Scenario on the engine, and the canonical trainer's recording made meanwhile."""
        reading = Reading(frozenset(parts))
        pending = self.runner.submit(self.name, scenario, reading)
        expected = train_canonically(scenario, reading, self.subject.policies)
        return pending.result(), expected

    def agree_in_turns(self, scenario: Scenario, beside: Scenario) -> None:
        """Demand the bits of a Scenario by itself if it takes turns with another one in the same processes.

        Raises:
            Disagreement: they differ; see :meth:`wrong`.
            RankFault: a rank raised, died or hung.
        """
        command = ReplayCommand(scenario, self.name, beside=beside)
        found = self.runner.difference(command, Reading())
        if found is not None:
            raise self._alone(command) or self.wrong(found, command)

    def _alone(self, command: ReplayCommand) -> Disagreement | None:
        """The error of the Scenario without the other one, if it is wrong by itself; the other one then has no part in
        it. Only an engine that promises bits is wrong by itself."""
        alone = replace(command, beside=None)
        if not self.subject.promises_bits:
            return None
        with suppress(RankFault):
            found = self.runner.difference(alone, Reading())
            return None if found is None else self.wrong(found, alone)
        return None

    def close(self) -> None:
        """End the ranks that belong to these Trials."""
        self.runner.close()


@lru_cache(maxsize=64)
def exact(scenario: Scenario, policies: Policies = CONTRACT) -> Trajectory:
    """The float64 run of a Scenario."""
    return float64(scenario, ALL, policies=policies)
