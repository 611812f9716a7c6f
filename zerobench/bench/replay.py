"""Replay: repeat the comparison that failed, by the command in the failure's last line, and give the verdict."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import cast

import torch.distributed as dist

from zerobench import findings
from zerobench.bench.accounts import TASKS, Books, UnknownForm
from zerobench.bench.oracle_runs import YARDSTICK
from zerobench.bench.runner import Reading, Runner
from zerobench.driver import ALL
from zerobench.errors import Disagreement, Finding, UsageError
from zerobench.judge.bounds import gradient_bound
from zerobench.judge.command import ReplayCommand
from zerobench.judge.judgement import agree_within, error_against, is_yardstick, judge_recordings
from zerobench.judge.parts import ALL_PARTS
from zerobench.machine.launch import threads_each
from zerobench.oracles.canonical_trainer import OracleStep, canonical
from zerobench.oracles.questions import Question, answer
from zerobench.ranks import Pool
from zerobench.ranks.pool import TIME_LIMIT
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import Policies
from zerobench.subjects import load
from zerobench.workload import models

#: Bytes of all ranks' recordings. If every state of every step takes more, only the values that ``run`` compares stay.
_ROOM = 2 << 30
#: Gradient, master, the model's own and two of the optimizer: bytes of a parameter's states in one step.
_STATES = 5 * 4
#: Seconds in which no rank does anything after which a replay on the CPU hangs: more than in the suites, since a
#: Scenario of a user may be large.
_IDLE = 30.0


@dataclass(frozen=True)
class Replayed:
    """The verdict; ``finding`` is the place of the fault if the subject is wrong and the place is known."""

    right: bool
    text: str
    finding: Finding | None = None


def compare_again(command: ReplayCommand, pool: Pool | None = None, limit: float = TIME_LIMIT) -> Replayed:
    """Compare again, on ranks of its own or on those of a pool.

    A rank has as many threads as in ``zerobench run`` and, for a step, ``limit`` seconds, as there by default.

    Raises:
        UsageError: if there is no such subject, model or data, or if the subject refuses the configuration.
        RankFailure: if a rank raised, died or hung.
    """
    for name, scenario in [(command.subject, command.scenario), *([command.other] if command.other else [])]:
        reason = load(name).not_offered(scenario)
        if reason is not None:
            return Replayed(True, f"{name} does not offer this Scenario: {reason}")
    others = [*([command.other[1]] if command.other else []), *([command.saved_by] if command.saved_by else [])]
    world = max(each.world for each in (command.scenario, *others))
    with ExitStack() as stack:
        if pool is None:
            device = command.scenario.device
            idle = _IDLE if device == "cpu" else math.inf  # a GPU may work while its process rests
            pool = stack.enter_context(Pool(world, device, threads_each(world), idle))
        runner = stack.enter_context(closing(Runner(pool, lambda scenario: limit * scenario.steps)))
        if command.account:
            return _account(runner, command)
        if command.bound:
            return _bound(runner, command)
        if command.each_step:
            return _each_step(runner, command)
        if command == ReplayCommand(command.scenario, command.subject):
            return _judge(runner, command)
        return _compare(runner, command)


def known_finding(command: ReplayCommand) -> str:
    """A line about the known finding of the subject that describes the Scenario; empty if there is none."""
    found = findings.matching(load(command.subject), command.scenario)
    if found is None:
        return ""
    text = f"known finding {found.slug} ({found.kind}): {found.explanation}"
    return f"{text} See reports/findings/{found.slug}.\n"


def _account(runner: Runner, command: ReplayCommand) -> Replayed:
    """Hold the bytes to their closed form."""
    assert command.account is not None
    task, args = TASKS[command.account]
    measured = runner.ask(command, task, *args).result()
    try:
        found = next(Books(command.subject, command.scenario).differences(command.account, measured), None)
    except UnknownForm as error:
        raise UsageError(str(error)) from None
    if found is None:
        return Replayed(True, f"{command.subject}: right, {command.account} to the byte")
    return Replayed(False, f"{found}\n{command}", found)


def _bound(runner: Runner, command: ReplayCommand) -> Replayed:
    """Hold the gradients of a Scenario of one step to the rounding bound of their sum."""
    if command.scenario.steps > 1:  # later steps begin with other weights
        raise UsageError(f'--bound judges one step, and the Scenario has {command.scenario.steps}: give it "steps": 1')
    got = runner.submit(command.subject, command.scenario, Reading(frozenset({"gradients"}))).result()
    policies, limit = load(command.subject).policies, runner.limit(command.scenario)
    [expected] = runner.pool.run(_magnitudes, command.scenario, policies, world=1, timeout=limit)
    first = cast(OracleStep, expected.steps[0])
    bounds = [gradient_bound(command.scenario, first.magnitudes, first.lost)]
    try:
        used = agree_within(got, expected, bounds, name=command.subject, policies=policies)
    except Disagreement as error:
        return Replayed(False, str(error), error.finding)
    return Replayed(True, f"{command.subject}: right, {used:.0%} of the gradients' rounding bound")


def _each_step(runner: Runner, command: ReplayCommand) -> Replayed:
    """Hold every step to the state that the engine had before it."""
    found = runner.first_that_does_not_follow(command)
    if found is not None:
        return Replayed(False, f"{found}\n{command}", found)
    return Replayed(True, f"{command.subject}: right, each step follows from the one before")


def _compare(runner: Runner, command: ReplayCommand) -> Replayed:
    """Require the bits of the canonical trainer or of the other run, in some parts."""
    readings = [replace(each, parts=each.parts & set(command.parts)) for each in _readings(command.scenario)]
    found = [runner.difference(command, each) for each in readings]
    nearest = next(filter(None, found), None)
    if nearest is not None:
        return Replayed(False, f"{nearest}\n{command}", nearest)
    against = "the canonical trainer" if command.other is None else "the other run"
    against = against if command.saved_by is None else "the run that nothing interrupts"
    return Replayed(True, f"{command.subject}: right, the same bits as {against}")


def _judge(runner: Runner, command: ReplayCommand) -> Replayed:
    """Ask the oracles."""
    scenario, readings = command.scenario, _readings(command.scenario)
    expected = [runner.canonical(command, each) for each in readings]
    skipped = tuple(step.skipped for step in expected[0].steps)
    asked = Question("float64", scenario, skipped, load(command.subject).policies)
    [reference64] = runner.pool.run(_answer, asked, world=1, timeout=runner.limit(scenario))
    yardstick, own = _error(runner, asked, reference64), error_against(expected[0], reference64)
    if not is_yardstick(yardstick, own, scenario):
        yardstick = own
    judgements = [
        judge_recordings(
            runner.submit(command.subject, scenario, reading).result(),
            right,
            reference64,
            yardstick,
            name=command.subject,
            promises_bits=load(command.subject).promises_bits,
            parts=reading.parts,
        )
        for reading, right in zip(readings, expected, strict=True)
    ]
    worst = next((each for each in judgements if not each.right), judgements[0])
    return Replayed(worst.right, str(worst), None if worst.right else worst.difference)


def _error(runner: Runner, asked: Question, reference64: Trajectory) -> float:
    """torch DDP's error in the same Scenario at its own stage; NaN if it does not offer that or has a known finding in
    it, and if a part of a state is loaded, because DDP's masters may be others then.

    It follows policies of its own, so its error is that against a float64 run with these.
    """
    plain, ddp = asked.scenario.but(stage=0, schedule="auto", resumes=()), load(YARDSTICK)
    if asked.scenario.loads_part or ddp.not_offered(plain) is not None or findings.matching(ddp, plain) is not None:
        return math.nan
    if ddp.policies != asked.policies:
        own = replace(asked, policies=ddp.policies)
        [reference64] = runner.pool.run(_answer, own, world=1, timeout=runner.limit(asked.scenario))
    done = runner.submit(YARDSTICK, plain, Reading(frozenset({"parameters"}))).result()
    return max(error_against(each, reference64) for each in done)


def _readings(scenario: Scenario) -> list[Reading]:
    """Every state of every step, which shows the nearest place; then few, because reading may hide a fault."""
    if _fits(scenario):
        return [Reading(keep=ALL), Reading()]
    return [Reading(frozenset(ALL_PARTS) - ALL | {"parameters"}, keep=frozenset())]


def _fits(scenario: Scenario) -> bool:
    """Whether there is room for every state of every step of every rank."""
    shapes = models.shapes(scenario.but(data="random"))  # for any data: dyadic ones would draw values
    return _STATES * sum(p.numel() for p in shapes.parameters()) * scenario.steps * scenario.world <= _ROOM


def _answer(group: dist.ProcessGroup, question: Question) -> Trajectory:
    return answer(question)


def _magnitudes(group: dist.ProcessGroup, scenario: Scenario, policies: Policies) -> Trajectory:
    """The canonical trainer's gradients, with the conditions of their sums."""
    return canonical(scenario, frozenset({"gradients"}), magnitudes=True, policies=policies)
