"""The two halves of a resumed run as tasks of a rank, which may be other processes, as many or not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import torch.distributed as dist

from zerobench import subjects
from zerobench.driver import Keep, evaluation, loaded, loaded_client_state, resumed, run_step, save, save_again, start
from zerobench.recording import Step, Trajectory
from zerobench.scenario import Scenario


def save_other(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path, tag: str) -> None:
    """Save another model without steps, as an earlier state of the run on these ranks.

    If the directory keeps several states, it has the name ``tag``.
    """
    other = scenario.but(seed=scenario.seed + 1)
    with closing(start(subjects.load(name), other, group)) as subject:
        subject.tag = tag if subject.keeps_tags else ""
        save(subject, other, directory, 0)


def save_after(group: dist.ProcessGroup, name: str, scenario: Scenario, directory: Path, every: Keep) -> Trajectory:
    """Train all steps of a Scenario, and save; the recording holds the states in ``every`` of each step."""
    rank = dist.get_rank(group)
    with closing(start(subjects.load(name), scenario, group)) as subject:
        steps = [run_step(subject, scenario, index, rank, every) for index in range(scenario.steps)]
        save(subject, scenario, directory, scenario.steps)
    return Trajectory(name, scenario, rank, steps)


def resume_at(
    group: dist.ProcessGroup,
    name: str,
    scenario: Scenario,
    first: int,
    directory: Path,
    every: Keep,
    last: Keep,
    evaluate: bool,
) -> Trajectory:
    """Load the saved state, and train a Scenario from step ``first`` on, over its later loads; the recording of these
    steps.

    In every second Scenario, by the seed, these ranks save it once more to the directory, by the same name if states
    have names, right after a load, and load that. The recording holds the states in ``every`` of each step, those in
    ``last`` of the last one, and an evaluation after it if one is asked for.
    """
    subject_type, rank = subjects.load(name), dist.get_rank(group)
    if scenario.loads == "all" and scenario.seed // 2 % 2:
        with closing(loaded(subject_type, scenario, group, directory, first)) as subject:
            save_again(subject, scenario, group, directory, first)
    subject = loaded(subject_type, scenario, group, directory, first)
    client_state, steps = loaded_client_state(subject, scenario, first), list[Step]()
    try:
        for index in range(first, scenario.steps):
            if index in scenario.resumes and index > first:
                subject = resumed(subject, scenario, group, directory, index)
                client_state = loaded_client_state(subject, scenario, index)
            keep = every | last if index == scenario.steps - 1 else every
            steps.append(run_step(subject, scenario, index, rank, keep))
            steps[-1].progress |= client_state
            client_state = {}
        evaluated = evaluation(subject, scenario) if evaluate else None
    finally:
        subject.close()
    return Trajectory(name, scenario, rank, steps, evaluated)
