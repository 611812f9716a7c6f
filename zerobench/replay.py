"""Replay: one Scenario on one subject, as a failure prints it, and the verdict."""

from __future__ import annotations

import math

import torch.distributed as dist

from zerobench.drive import ALL, Keep, drive
from zerobench.judge import Judgement, error_against, judge
from zerobench.oracles.canonical import canonical, float64
from zerobench.ranks import Pool
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subjects import load

_PARAMETERS: Keep = frozenset({"parameters"})
_YARDSTICK = "torch-ddp"


def replay(scenario: Scenario, name: str) -> Judgement | str:
    """The judgement, or why the subject does not offer the Scenario.

    Raises:
        UsageError: no such subject, model or data.
        RankFailure: a rank raised, died or hung.
    """
    subject = load(name)
    reason = subject.unsupported(scenario)
    if reason is not None:
        return reason
    with Pool(scenario.world, scenario.device) as pool:
        got = pool.run(_drive, name, scenario, ALL)
        right = pool.run(_canonical, scenario, world=1)[0]
        skipped = [step.skipped for step in right.steps]
        reference64 = pool.run(_float64, scenario, skipped, world=1)[0]
        yardstick = _error(pool, scenario, reference64)
    if math.isnan(yardstick):
        yardstick = error_against(right, reference64)
    return judge(got, right, reference64, yardstick, name=name, promises_bits=subject.promises_bits)


def _error(pool: Pool, scenario: Scenario, reference64: Trajectory) -> float:
    """torch DDP's error in the same Scenario at its own stage; NaN where it does not offer that."""
    plain = scenario.but(stage=0, schedule="auto")
    if load(_YARDSTICK).unsupported(plain) is not None:
        return math.nan
    return max(error_against(each, reference64) for each in pool.run(_drive, _YARDSTICK, plain, _PARAMETERS))


def _drive(group: dist.ProcessGroup, name: str, scenario: Scenario, keep: Keep) -> Trajectory:
    return drive(load(name), scenario, group, keep, evaluate=True)


def _canonical(group: dist.ProcessGroup, scenario: Scenario) -> Trajectory:
    return canonical(scenario, ALL)


def _float64(group: dist.ProcessGroup, scenario: Scenario, skipped: list[bool]) -> Trajectory:
    return float64(scenario, _PARAMETERS, skipped=skipped)
