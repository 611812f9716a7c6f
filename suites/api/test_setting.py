"""Setting a state of one parameter costs its parameter, not the model."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

import zerobench
from zerobench.driver import run_step, start
from zerobench.engine.inspect import locate
from zerobench.judge.command import ReplayCommand
from zerobench.meters.offload import OffloadMeter
from zerobench.meters.traffic import TrafficMeter
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.trials import Trials

_SUB_GROUP = 1024


def _moved(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[tuple[int, int, int]]:
    """For each parameter of a trained engine: the sub-groups with elements that this rank owns, and the bytes that
    setting its master weight reads and writes."""
    found = []
    with closing(start(Reference, scenario, group)) as subject:
        assert isinstance(subject, Reference)
        run_step(subject, scenario, 0, dist.get_rank(group))
        for parameter in subject.trained.values():
            value = zerobench.safe_get_full_fp32_param(parameter)
            assert value is not None
            with TrafficMeter() as traffic, OffloadMeter() as files:
                zerobench.safe_set_full_fp32_param(parameter, value + 1)
            assert not traffic.traffic
            found.append((_sub_groups(parameter), files.bytes["file_read"], files.bytes["file_written"]))
    return found


def _sub_groups(parameter: nn.Parameter) -> int:
    _, state, slot = locate(parameter)
    assert state is not None
    lo, hi = (each - state.own.start for each in slot.within(state.own))
    return -(-hi // _SUB_GROUP) - lo // _SUB_GROUP if lo < hi else 0


@pytest.mark.parametrize(
    ("stage", "offload"), [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (1, "nvme"), (2, "nvme"), (3, "nvme")]
)
def test_setting_moves_one_parameter(reference: Trials, stage: int, offload: Any) -> None:
    """If a client sets a master weight, nothing is communicated. Of the states in files, a rank reads and writes the
    sub-groups that hold its part of the parameter: the master weights and Adam's two moments."""
    scenario = Scenario(stage=stage, offload_optimizer=offload, sub_group=_SUB_GROUP, steps=1)
    for by_parameter in reference.ask(ReplayCommand(scenario, "reference"), _moved):
        for groups, read, written in by_parameter:
            assert read == written == (3 * 4 * _SUB_GROUP * groups if offload == "nvme" else 0)
