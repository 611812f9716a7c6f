"""Subjects alternate in one process: each leaves torch to the others as it found it."""

from __future__ import annotations

import pytest

from zerobench.judge.command import ReplayCommand
from zerobench.suites.support.client import Changed
from zerobench.suites.support.neighbours import replaced, scenario_of
from zerobench.suites.support.rerun import error_of_test
from zerobench.suites.support.trials import Trials


@pytest.mark.parametrize("stage", range(4))
def test_torch_is_left_as_it_was(trials: Trials, stage: int) -> None:
    """After steps, a save, a load and an evaluation, and after its end, every name of torch is the object that it was
    before the engine was built, and torch has the same global hooks and modes."""
    scenario = scenario_of(trials.subject, stage)
    if reason := trials.subject.not_offered(scenario):
        pytest.skip(reason)
    for rank, things in enumerate(trials.ask(ReplayCommand(scenario, trials.name), replaced)):
        if things:
            found = Changed(trials.name, scenario, rank, things[0], owner="torch")
            raise error_of_test(found, scenario, trials.name)
