"""The oracles' runs beside a bench, and the judgement of its cases by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat

from zerobench.bench.rounds import Bench, CaseResult
from zerobench.judge.judgement import Judgement, error_against, is_exact, is_yardstick, judge_recordings
from zerobench.judge.outcomes import may_skip
from zerobench.judge.parts import Part
from zerobench.oracles.questions import Question
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario
from zerobench.subjects import load

#: The values that "bitwise" compares in a report: these of every step, the parameters after the last.
COMPARED: tuple[Part, ...] = ("losses", "norm", "skipped", "parameters")
#: Its error is the yardstick of the budget if it is among the subjects; otherwise the canonical trainer's error is.
YARDSTICK = "torch-ddp"


@dataclass(frozen=True)
class OracleRuns:
    """The canonical trainer's runs by reduction schedule, the float64 run, and the yardstick of the error budget."""

    canonical: Mapping[str, Trajectory]
    reference64: Trajectory
    yardstick: str
    error: float  # of the yardstick

    @classmethod
    def of(cls, bench: Bench) -> OracleRuns | None:
        """Ask the oracles about a bench's Scenarios; None if no subject is left or if they failed, as results say."""
        judged = bench.engines
        if not judged:
            return None
        first = judged[0]
        scenarios = {_schedule(each.case.scenario): each.case.scenario for each in judged}
        skipped = tuple(step.skipped for step in first.trajectories[0].steps)
        asked = [Question("canonical", scenario) for scenario in scenarios.values()]
        answers = bench.ask([Question("float64", first.case.scenario, skipped), *asked])
        if answers is None:
            return None
        reference64, *runs = answers
        if not all(map(may_skip, first.trajectories[0].steps, runs[0].steps, repeat(first.case.scenario))):
            # the first subject is wrong; its skipped steps must not be those that the others are held to
            skipped = tuple(step.skipped for step in runs[0].steps)
            again = bench.ask([Question("float64", first.case.scenario, skipped)])
            if again is None:
                return None
            [reference64] = again
        ddp = [each for case in judged if case.case.subject == YARDSTICK for each in case.trajectories]
        error, own = (max((error_against(each, reference64) for each in of), default=math.nan) for of in (ddp, runs))
        fits = is_yardstick(error, own, first.case.scenario)
        which, error = (YARDSTICK, error) if fits else ("canonical", own)
        return cls(dict(zip(scenarios, runs, strict=True)), reference64, which, error)

    def exact(self, result: CaseResult) -> bool:
        """Whether no sum of a case was rounded, so that its bits are the same on every machine."""
        return is_exact(self.canonical[_schedule(result.case.scenario)], self.reference64)

    def judge(self, result: CaseResult) -> Judgement:
        """Judge a case that was trained."""
        return judge_recordings(
            result.trajectories,
            self.canonical[_schedule(result.case.scenario)],
            self.reference64,
            self.error,
            name=result.case.subject,
            promises_bits=load(result.case.subject).promises_bits,
            parts=COMPARED,
        )


def _schedule(scenario: Scenario) -> str:
    """The schedule of a step's sums; without accumulation both schedules have the same sums."""
    return scenario.reduction if scenario.accumulation > 1 else "any"
