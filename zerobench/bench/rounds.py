"""Rounds: cases trained side by side, alternating step by step, so that all run under the same conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from zerobench.bench import flops, rank_tasks
from zerobench.errors import RankFailure
from zerobench.judge.outcomes import roundings
from zerobench.meters import Metered
from zerobench.oracles import questions
from zerobench.oracles.questions import Question
from zerobench.ranks import Pool, RankFault
from zerobench.recording import Trajectory
from zerobench.results import Json
from zerobench.results.identity import COMPUTE_ONLY, Case
from zerobench.scenario import Dtype
from zerobench.verdict import Verdict

T = TypeVar("T")

#: The steps in one fence.
AHEAD = 4


@dataclass
class CaseResult:
    """The outcome of a case. It is ``measured`` until it fails; if it failed, it has a reason and nothing else.

    If it did not fail, the reason names its missing measurements.
    """

    case: Case
    verdict: Verdict = "measured"
    reason: str = ""
    trajectories: list[Trajectory] = field(default_factory=list)  # by rank
    flops: int | None = None  # of the model in one step on one rank


class Bench:
    """Measures cases on a pool; ``results`` has one entry for each. If a subject fails, the others continue.

    If a rank dies, all subjects on it are lost, so the rounds start again without the one at fault. If the oracles or
    the peak fail, the results keep their numbers, and their reason names the missing part. ``time_limit``, in seconds,
    is that of a step or of building a subject. If the results will not be ``judged``, no parameters are read.
    """

    def __init__(
        self,
        pool: Pool,
        cases: Sequence[Case],
        time_limit: float,
        progress: Callable[[str], None],
        *,
        judged: bool = True,
    ) -> None:
        self.pool, self.time_limit, self.progress, self.judged = pool, time_limit, progress, judged
        self.results = [CaseResult(case) for case in cases]

    @property
    def alive(self) -> list[CaseResult]:
        """The cases that have not failed."""
        return [each for each in self.results if each.verdict == "measured"]

    @property
    def engines(self) -> list[CaseResult]:
        """The alive cases that are judged and metered: all except compute-only."""
        return [each for each in self.alive if each.case.subject != COMPUTE_ONLY]

    def train(self, steps: int) -> None:
        """Train ``steps`` steps of every subject in rounds, a step of each; then read its parameters and close it."""
        while not (self._build() and self._rounds(steps)):
            pass
        if alive := self.alive:  # all train one model on as many samples
            scenario = alive[0].case.scenario
            counts = self._beside("its FLOPs were not counted", flops.model_flops, scenario, world=1)
            for each in alive:
                each.flops = counts[0] if counts else None

    def _build(self) -> bool:
        """Build the subjects, on fresh ranks if one failed before; False if another one fails."""
        for each in self.alive:
            self.progress(f"building {each.case.label}")
            reasons = self._run(each, rank_tasks.build)
            if reasons is None:
                return False
            if reasons[0] is not None:
                each.verdict, each.reason = "unsupported", reasons[0]
        self.pool.run(rank_tasks.hush)
        return True

    def _rounds(self, steps: int) -> bool:
        """Train all subjects that were built; False if one failed."""
        alive = self.alive
        for each in alive:
            subject, scenario = each.case.subject, each.case.scenario
            each.trajectories = [Trajectory(subject, scenario, rank, []) for rank in range(self.pool.world)]
        for index in range(steps):
            for each in round_order(alive, index):
                self.progress(f"round {index + 1} of {steps}: {each.case.label}")
                if not self._step(each, index):
                    return False
        return all(self._read(each) and self._run_ahead(each, steps) for each in alive) and all(map(self._close, alive))

    def _step(self, result: CaseResult, index: int) -> bool:
        done = self._run(result, rank_tasks.timed_step, index)
        for trajectory, (step, seconds, split) in zip(result.trajectories, done or [], strict=False):
            trajectory.steps.append(step)
            trajectory.seconds.append(seconds)
            trajectory.splits.append(split)
        return done is not None

    def _read(self, result: CaseResult) -> bool:
        if result.case.subject == COMPUTE_ONLY or not self.judged:
            return True
        self.progress(f"reading {result.case.label}")
        done = self._run(result, rank_tasks.read)
        if done is None:
            return False
        first = done[0] or {}
        for trajectory, other in zip(result.trajectories, done, strict=True):
            trajectory.steps[-1].parameters = first if other is None else other
        return True

    def _run_ahead(self, result: CaseResult, steps: int) -> bool:
        """Time some more steps in one fence; the recording ends before them, and they must change something."""
        self.progress(f"{AHEAD} steps in one fence: {result.case.label}")
        moves = self.judged and not any(each.steps[-1].skipped for each in result.trajectories if each.steps)
        done = self._run(result, rank_tasks.run_ahead, steps, AHEAD, moves)
        for trajectory, seconds in zip(result.trajectories, done or [], strict=False):
            trajectory.run_ahead = seconds
        return done is not None

    def _close(self, result: CaseResult) -> bool:
        return self._run(result, rank_tasks.close) is not None

    def meter(self, metered: Callable[[], None] = lambda: None) -> None:
        """Meter memory and traffic of each subject, rebuilt and alone; call ``metered`` after each."""
        for each in self.engines:
            self.progress(f"metering {each.case.label}")
            done = self._run(each, rank_tasks.meter, self.judged)
            for trajectory, found in zip(each.trajectories, done or [], strict=False):
                trajectory.memory, trajectory.traffic, trajectory.wire = found.memory, found.traffic, found.wire
                trajectory.offload, trajectory.held = found.offload, found.held
            self._demand_same_losses(each, done or [])
            metered()

    def _demand_same_losses(self, result: CaseResult, metered: Sequence[Metered]) -> None:
        """The metered subject is another object than the one that was judged, and has its losses, but for roundings."""
        ranks = zip(result.trajectories, metered, strict=False)
        other = [told for trajectory, found in ranks for told in _other_losses(trajectory, found.losses)]
        if other:
            result.verdict, result.reason, result.trajectories = "raised", other[-1], []

    def peak(self, dtype: Dtype) -> Json | None:
        """The slowest rank's rate in a matrix multiplication that all ranks run at once; None if a rank failed."""
        self.progress("multiplying matrices")
        rates = self._beside("without a peak to compare with", flops.peak, dtype, self.pool.device)
        if rates is None:
            return None
        return {"dtype": dtype, "size": flops.SIZES[self.pool.device], "flops_per_second": min(rates)}

    def ask(self, asked: Sequence[Question]) -> list[Trajectory] | None:
        """The oracles' answers, in order; the ranks share the work. None if a rank failed."""
        self.progress("running the canonical trainer and the float64 run")
        steps = max(1, *(question.scenario.steps for question in asked))
        found = self._beside("not judged", questions.answer_share, asked, steps=steps)
        if found is None:
            return None
        answers = [iter(each) for each in found]
        return [next(answers[i % self.pool.world]) for i in range(len(asked))]

    def _run(self, result: CaseResult, task: Callable[..., T], *args: object) -> list[T] | None:
        """The task's results by rank; None if a rank failed: the failure becomes the case's verdict."""
        try:
            return self.pool.run(task, result.case, *args, timeout=self.time_limit)
        except RankFault as fault:
            result.verdict, result.reason = fault.kind, str(fault)
            result.trajectories = []
            return None

    def _beside(
        self, lost: str, task: Callable[..., T], *args: object, world: int | None = None, steps: int = 1
    ) -> list[T] | None:
        """The task's results by rank; None if a rank failed: then every case's reason names the loss."""
        try:
            return self.pool.run(task, *args, world=world, timeout=self.time_limit * steps)
        except RankFailure as failure:
            for each in self.engines:
                each.reason += f"{lost}: {failure}\n"
            return None


def _other_losses(trajectory: Trajectory, metered: Sequence[Sequence[Tensor]]) -> Iterator[str]:
    """What to tell of each metered loss that is not the recorded one, but for roundings."""
    apart = roundings(trajectory.scenario)
    for index, (step, losses) in enumerate(zip(trajectory.steps, metered, strict=False)):
        for ours, theirs in zip(map(float, losses), map(float, step.losses), strict=True):
            if not (math.isclose(ours, theirs, rel_tol=apart) or (math.isnan(ours) and math.isnan(theirs))):
                told = f"rank {trajectory.rank} had the loss {ours!r} when it was metered"
                yield f"in step {index} {told}, and {theirs!r} when it was timed and judged"


def round_order(results: Sequence[CaseResult], index: int) -> list[CaseResult]:
    """The order of round ``index``: it rotates, and every second round runs backwards, so that neighbours change."""
    at = index % len(results) if results else 0
    order = [*results[at:], *results[:at]]
    return order[::-1] if index % 2 else order
