"""A Scenario under way on one rank, recorded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch.distributed as dist

from zerobench.driver.building import start
from zerobench.driver.reading import Keep, evaluation
from zerobench.driver.resuming import loaded_client_state, resumed, shared_directory
from zerobench.driver.stepping import run_step
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario
from zerobench.subject import State, Subject


def drive(
    subject_type: type[Subject],
    scenario: Scenario,
    group: dist.ProcessGroup,
    keep: Keep = frozenset(),
    *,
    last: Keep = frozenset(),
    evaluate: bool = False,
) -> Trajectory:
    """Train a Scenario from start to end; every rank of ``group`` calls it and gets its own recording.

    ``keep`` is recorded of every step, ``last`` of the last one as well: reading costs more than training.

    The subject is always closed. The caller checks first if it offers the Scenario.

    Raises:
        UsageError: if the Scenario's model or data are invalid.
    """
    run = Run(subject_type, scenario, group, keep, last=last, evaluate=evaluate)
    with closing(run):
        while run.step():
            pass
        return run.recording()


class Run:
    """A Scenario under way on one rank, so that several can take turns in one process.

    :meth:`step` runs the next step with its reads and returns False after the last. Then :meth:`end` has the recording.
    """

    def __init__(
        self,
        subject_type: type[Subject],
        scenario: Scenario,
        group: dist.ProcessGroup,
        keep: Keep = frozenset(),
        *,
        last: Keep = frozenset(),
        evaluate: bool = False,
    ) -> None:
        self.scenario, self.rank, self.keep, self.last, self.evaluate = (
            scenario,
            dist.get_rank(group),
            keep,
            last,
            evaluate,
        )
        self.group, self.steps = group, list[Step]()
        self._saved: Path | None = None
        self.subject = start(subject_type, scenario, group)

    def _resume(self, step: int) -> State:
        self._saved = self._saved or shared_directory(self.group)
        self.subject = resumed(self.subject, self.scenario, self.group, self._saved, step)
        return loaded_client_state(self.subject, self.scenario, step)

    def step(self, mark: Callable[[str], None] = lambda phase: None) -> bool:
        """Run the next step, with :func:`run_step`'s ``mark``; returns whether another one follows."""
        index = len(self.steps)
        loaded = self._resume(index) if index in self.scenario.resumes else {}
        ends = index == self.scenario.steps - 1
        keep = self.keep | (self.last if ends else frozenset())
        self.steps.append(run_step(self.subject, self.scenario, index, self.rank, keep, mark))
        self.steps[-1].progress |= loaded
        return not ends

    def recording(self) -> Trajectory:
        """The recording of all steps, and of an evaluation now if one is asked for."""
        found = evaluation(self.subject, self.scenario) if self.evaluate else None
        return Trajectory(self.subject.name, self.scenario, self.rank, self.steps, found)

    def end(self) -> Trajectory:
        """The recording; the subject is closed."""
        with closing(self):
            return self.recording()

    def close(self) -> None:
        """Close the subject, and remove its checkpoints."""
        self.subject.close()
        if self._saved is not None and self.rank == 0:
            shutil.rmtree(self._saved, ignore_errors=True)
