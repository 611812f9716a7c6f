"""Subjects alternate in one process: each leaves torch to the others as it found it."""

from __future__ import annotations

import pytest

from zerobench.judge.command import ReplayCommand
from zerobench.suites.support.neighbours import SCENARIO, replaced
from zerobench.suites.support.trials import Trials


@pytest.mark.parametrize("stage", range(4))
def test_torch_is_left_as_it_was(trials: Trials, stage: int) -> None:
    """After a step and after its end, every name of torch is the object that it was before the engine was built."""
    scenario = SCENARIO.but(stage=stage)
    if reason := trials.subject.not_offered(scenario):
        pytest.skip(reason)
    command = ReplayCommand(scenario, trials.name)
    assert trials.ask(command, replaced) == [[]] * scenario.world
