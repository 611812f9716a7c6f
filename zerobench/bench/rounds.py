"""Bench: train several subjects side by side, a step of each by turns, so that all of them meet the same machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from zerobench.bench import flops, rank_tasks
from zerobench.errors import RankFailure
from zerobench.ranks import Pool, RankFault
from zerobench.recording import Trajectory, Verdict
from zerobench.scenario import Dtype, LossScale, Odd, Offload, Scenario

Json = dict[str, Any]
T = TypeVar("T")

#: The same step without communication; it is in every run and every time is given as a multiple of its.
COMPUTE_ONLY = "compute-only"
#: What the peers correspond to. The reference, and a subject of your own, run at every stage that is asked for.
STAGES = {"torch-ddp": 0, "torch-zero1": 1, "torch-fsdp2": 3, COMPUTE_ONLY: 0}
STAGES_OF_ZERO = (0, 1, 2, 3)

#: What a row is called, by how its ranks failed.
VERDICTS: dict[str, Verdict] = {"raised": "failed", "crashed": "crashed", "timeout": "timeout"}


@dataclass
class Measured:
    """One row: a subject in a Scenario, and what came of it; nothing but a reason where the verdict is not ok.

    Where the verdict is ok, a reason says what nobody could measure of it.
    """

    subject: str  # as --subjects takes it
    scenario: Scenario
    verdict: Verdict = "ok"
    reason: str = ""
    trajectories: list[Trajectory] = field(default_factory=list)  # by rank
    flops: int | None = None  # of the model in one step on one rank

    @property
    def key(self) -> rank_tasks.Key:
        """How the ranks know it."""
        return self.subject, self.scenario

    @property
    def label(self) -> str:
        """For people."""
        if self.subject == COMPUTE_ONLY:
            return self.subject
        place = self.scenario.optimizer_at
        return f"{self.subject} stage {self.scenario.stage}" + (f" on {place}" if place != "none" else "")


def rows(
    base: Scenario, subjects: Sequence[str], stages: Sequence[int], offload: Sequence[Offload] = ("none",)
) -> list[Measured]:
    """The rows of a run: each subject at its stages, where they can be offloaded with each offload, compute-only last.

    Offloaded are optimizer states, and at stage 3 parameters as well.
    """
    named = [(name, stage) for name in subjects for stage in ([STAGES[name]] if name in STAGES else stages)]
    named = [each for each in named if each[0] != COMPUTE_ONLY] + [(COMPUTE_ONLY, 0)]
    return [
        Measured(name, _offloaded(at_stage(base, stage), place))
        for name, stage in dict.fromkeys(named)
        for place in (offload if stage >= 1 and name not in STAGES else ("none",))
    ]


def _offloaded(scenario: Scenario, place: Offload) -> Scenario:
    return scenario.but(offload_optimizer=place, offload_param=place if scenario.stage == 3 else "none")


def at_stage(base: Scenario, stage: int) -> Scenario:
    """``base`` at a stage; at stage 3 with settings that really shard, and fp16 with a loss scale all subjects have.

    Stage 3 keeps LayerNorms and biases whole, at most four times the width, and nothing else longer than it is used; it
    fetches two blocks ahead.
    """
    assert not isinstance(base.model, Odd)
    width = base.model.width
    if base.dtype == "fp16":
        base = base.but(loss_scale=LossScale(static=256.0))
    if stage < 3:
        return base.but(stage=stage)
    return base.but(stage=3, max_live=0, persistence=4 * width + 1, prefetch_bucket=24 * width**2 + 26 * width)


@dataclass
class Bench:
    """Measures ``rows`` on a pool; a subject that fails becomes a row that says so, and the others go on.

    A rank that dies takes every subject with it, so that the rounds start again without the one at fault. What fails
    beside the subjects (the oracles, the peak) takes nothing from a row: its reason says what is not there.
    """

    pool: Pool
    rows: list[Measured]
    time_limit: float  # seconds for a step, or for building a subject
    progress: Callable[[str], None]

    @property
    def alive(self) -> list[Measured]:
        """The rows that nothing has happened to."""
        return [row for row in self.rows if row.verdict == "ok"]

    @property
    def engines(self) -> list[Measured]:
        """Those of them that are judged and metered: compute-only has nothing to show."""
        return [row for row in self.alive if row.subject != COMPUTE_ONLY]

    def train(self, steps: int) -> None:
        """Train ``steps`` steps of every subject in rounds, a step of each; then read its parameters and close it."""
        while not (self._build() and self._rounds(steps)):
            pass
        if alive := self.alive:  # all train one model on as many samples
            counts = self._beside("its FLOPs were not counted", flops.model_flops, alive[0].scenario, world=1)
            for row in alive:
                row.flops = counts[0] if counts else None

    def _build(self) -> bool:
        """Build the subjects, on fresh ranks where a subject failed; False where another one failed."""
        for row in self.alive:
            self.progress(f"building {row.label}")
            reasons = self._run(row, rank_tasks.build)
            if reasons is None:
                return False
            if reasons[0] is not None:
                row.verdict, row.reason = "unsupported", reasons[0]
        self.pool.run(rank_tasks.hush)
        return True

    def _rounds(self, steps: int) -> bool:
        """Train all subjects that were built; False where one failed."""
        alive = self.alive
        for row in alive:
            row.trajectories = [Trajectory(row.subject, row.scenario, rank, []) for rank in range(self.pool.world)]
        for index in range(steps):
            for row in turn(alive, index):
                self.progress(f"round {index + 1} of {steps}: {row.label}")
                if not self._step(row, index):
                    return False
        return all(self._finish(row) for row in alive)

    def _step(self, row: Measured, index: int) -> bool:
        done = self._run(row, rank_tasks.timed_step, index)
        for trajectory, (step, seconds, split) in zip(row.trajectories, done or [], strict=False):
            trajectory.steps.append(step)
            trajectory.seconds.append(seconds)
            trajectory.splits.append(split)
        return done is not None

    def _finish(self, row: Measured) -> bool:
        self.progress(f"reading {row.label}")
        done = self._run(row, rank_tasks.finish, row.subject != COMPUTE_ONLY)
        if done is None:
            return False
        first = done[0] or {}
        for trajectory, other in zip(row.trajectories, done, strict=True):
            trajectory.steps[-1].parameters = first if other is None else other
        return True

    def meter(self) -> None:
        """Meter memory and traffic of each subject, made anew and alone."""
        for row in self.engines:
            self.progress(f"metering {row.label}")
            done = self._run(row, rank_tasks.meter)
            for trajectory, metered in zip(row.trajectories, done or [], strict=False):
                trajectory.memory, trajectory.traffic, trajectory.wire, trajectory.offload, trajectory.held = metered

    def peak(self, dtype: Dtype) -> Json | None:
        """What the slowest rank reaches in a matrix multiplication while all are at one; None where a rank failed."""
        self.progress("multiplying matrices")
        rates = self._beside("without a peak to compare with", flops.peak, dtype, self.pool.device)
        if rates is None:
            return None
        return {"dtype": dtype, "size": flops.SIZES[self.pool.device], "flops_per_second": min(rates)}

    def ask(self, questions: Sequence[rank_tasks.Question]) -> list[Trajectory] | None:
        """The oracles' answers, in order; the ranks share the work. None where a rank failed."""
        self.progress("running the canonical trainer and the float64 run")
        steps = max(1, *(scenario.steps for _, scenario, _ in questions))
        found = self._beside("not judged", rank_tasks.ask, questions, steps=steps)
        if found is None:
            return None
        answers = [iter(each) for each in found]
        return [next(answers[i % self.pool.world]) for i in range(len(questions))]

    def _run(self, row: Measured, task: Callable[..., T], *args: object) -> list[T] | None:
        """The task's results by rank; None where a rank failed, which becomes the row's verdict."""
        try:
            return self.pool.run(task, row.key, *args, timeout=self.time_limit)
        except RankFault as fault:
            row.verdict, row.reason = VERDICTS[fault.kind], str(fault)
            row.trajectories = []
            return None

    def _beside(
        self, lost: str, task: Callable[..., T], *args: object, world: int | None = None, steps: int = 1
    ) -> list[T] | None:
        """The task's results by rank; None where a rank failed, for which every row says what it lost."""
        try:
            return self.pool.run(task, *args, world=world, timeout=self.time_limit * steps)
        except RankFailure as failure:
            for row in self.engines:
                row.reason += f"{lost}: {failure}\n"
            return None


def turn(rows: Sequence[Measured], index: int) -> list[Measured]:
    """The order of round ``index``: it rotates, and every second round runs backwards, so that neighbours change."""
    at = index % len(rows) if rows else 0
    order = [*rows[at:], *rows[:at]]
    return order[::-1] if index % 2 else order
