"""Trial: the oracles' answers for a whole bench, and the judgement of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerobench.bench import rank_tasks
from zerobench.bench.rounds import Bench, Measured
from zerobench.judge.judgement import Judgement, Part, error_against, judge
from zerobench.recording import Trajectory
from zerobench.subjects import load

#: What "bitwise" means in a report: these of every step, the parameters after the last.
COMPARED: tuple[Part, ...] = ("losses", "norm", "skipped", "parameters")
#: Whose error is the yardstick of the budget, where it is among the subjects; else the canonical trainer's.
_YARDSTICK = "torch-ddp"


@dataclass(frozen=True)
class Trial:
    """The canonical trainer's runs by reduction schedule, the float64 run, and the yardstick of the error budget."""

    canonical: Mapping[str, Trajectory]
    reference64: Trajectory
    yardstick: str
    error: float  # of the yardstick

    @classmethod
    def of(cls, bench: Bench) -> Trial | None:
        """Ask the oracles about a bench's Scenarios; None where no subject is left, or they failed, as rows say."""
        judged = bench.engines
        if not judged:
            return None
        asked = {_schedule(row): row.scenario for row in judged}
        skipped = tuple(step.skipped for step in judged[0].trajectories[0].steps)
        questions: list[rank_tasks.Question] = [("float64", judged[0].scenario, skipped)]
        answers = bench.ask([*questions, *(("canonical", scenario, ()) for scenario in asked.values())])
        if answers is None:
            return None
        reference64, *runs = answers
        measure = next((row.trajectories for row in judged if row.subject == _YARDSTICK), None)
        error = max(error_against(each, reference64) for each in measure or runs)
        return cls(dict(zip(asked, runs, strict=True)), reference64, _YARDSTICK if measure else "canonical", error)

    def judge(self, row: Measured) -> Judgement:
        """Judge a row that was trained."""
        return judge(
            row.trajectories,
            self.canonical[_schedule(row)],
            self.reference64,
            self.error,
            name=row.subject,
            promises_bits=load(row.subject).promises_bits,
            parts=COMPARED,
        )


def _schedule(row: Measured) -> str:
    """What sums the row's steps are; without accumulation both schedules make the same ones."""
    return row.scenario.reduction if row.scenario.accumulation > 1 else "any"
