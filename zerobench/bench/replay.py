"""Replay: one Scenario on one subject, as a failure prints it, and the verdict."""

from __future__ import annotations

import math

import torch.distributed as dist

from zerobench.bench.oracle_runs import YARDSTICK
from zerobench.bench.rank_tasks import refusals
from zerobench.driver import ALL, Keep, drive
from zerobench.judge.judgement import Judgement, error_against, judge_recordings
from zerobench.machine.launch import threads_each
from zerobench.oracles.canonical_trainer import canonical, float64
from zerobench.oracles.questions import Question, answer
from zerobench.ranks import Pool
from zerobench.ranks.pool import TIME_LIMIT
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subjects import load
from zerobench.workload import models

_NONE: Keep = frozenset()
_PARAMETERS: Keep = frozenset({"parameters"})
#: Bytes of all ranks' recordings. If every state of every step takes more, only what ``run`` compares is kept.
_ROOM = 2 << 30
#: Gradient, master, the model's own and two of the optimizer: bytes of a parameter's states in one step.
_STATES = 5 * 4


def replay_scenario(scenario: Scenario, name: str) -> Judgement | str:
    """The judgement, or why the subject does not offer the Scenario.

    A rank has as many threads and, for a step, as much time as it has in ``zerobench run``.

    Raises:
        UsageError: no such subject, model or data, or a configuration that the subject refuses.
        RankFailure: a rank raised, died or hung.
    """
    subject = load(name)
    reason = subject.unsupported(scenario)
    if reason is not None:
        return reason
    keep = ALL if _fits(scenario) else _NONE
    limit = TIME_LIMIT * scenario.steps
    with Pool(scenario.world, scenario.device, threads_each(scenario.world)) as pool:
        got = pool.run(_drive, name, scenario, keep, timeout=limit)
        [right] = pool.run(_oracle, Question("canonical", scenario), keep, world=1, timeout=limit)
        skipped = tuple(step.skipped for step in right.steps)
        [reference64] = pool.run(_oracle, Question("float64", scenario, skipped), keep, world=1, timeout=limit)
        yardstick = _error(pool, scenario, reference64, limit)
    if math.isnan(yardstick):
        yardstick = error_against(right, reference64)
    return judge_recordings(got, right, reference64, yardstick, name=name, promises_bits=subject.promises_bits)


def _error(pool: Pool, scenario: Scenario, reference64: Trajectory, limit: float) -> float:
    """torch DDP's error in the same Scenario at its own stage; NaN if it does not offer that."""
    plain = scenario.but(stage=0, schedule="auto")
    if load(YARDSTICK).unsupported(plain) is not None:
        return math.nan
    done = pool.run(_drive, YARDSTICK, plain, _NONE, timeout=limit)
    return max(error_against(each, reference64) for each in done)


def _fits(scenario: Scenario) -> bool:
    """Whether there is room for every state of every step of every rank."""
    shapes = models.shapes(scenario.but(data="random"))  # whatever the data: dyadic ones would draw values
    return _STATES * sum(p.numel() for p in shapes.parameters()) * scenario.steps * scenario.world <= _ROOM


def _drive(group: dist.ProcessGroup, name: str, scenario: Scenario, keep: Keep) -> Trajectory:
    with refusals(name):
        return drive(load(name), scenario, group, keep, last=_PARAMETERS, evaluate=True)


def _oracle(group: dist.ProcessGroup, question: Question, keep: Keep) -> Trajectory:
    """The oracle's recording, with the same states as the subject's."""
    if not keep:
        return answer(question)
    if question.oracle == "canonical":
        return canonical(question.scenario, keep)
    return float64(question.scenario, _PARAMETERS, skipped=question.skipped)
