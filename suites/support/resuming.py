"""The two halves of a resumed run as tasks of a rank, which may be other processes, as many or not."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from zerobench import subjects
from zerobench.bench.runner import Reading
from zerobench.driver import model_for, run_step, start
from zerobench.recording import Trajectory
from zerobench.scenario import Scenario


def save_after(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path) -> None:
    """Train all steps of a Scenario, and save."""
    with closing(start(subjects.load(name), scenario, group)) as subject:
        for index in range(scenario.steps):
            run_step(subject, scenario, index, dist.get_rank(group))
        subject.save(directory)


def resume_at(
    group: dist.ProcessGroup, name: str, scenario: Scenario, first: int, directory: Path, reading: Reading
) -> Trajectory:
    """Load what was saved, and train a Scenario from step ``first`` on; the recording of these steps."""
    subject_type, rank = subjects.load(name), dist.get_rank(group)
    model = model_for(subject_type, scenario.but(seed=scenario.seed + 1))
    with closing(subject_type(model, scenario, group)) as subject:
        subject.load(directory)
        steps = [
            run_step(
                subject,
                scenario,
                index,
                rank,
                reading.every | (reading.last if index == scenario.steps - 1 else frozenset()),
            )
            for index in range(first, scenario.steps)
        ]
    return Trajectory(subject.name, scenario, rank, steps)


def after(trajectory: Trajectory, first: int) -> Trajectory:
    """A recording without the steps before step ``first``."""
    return replace(trajectory, steps=trajectory.steps[first:])
