"""Setting a state of one parameter costs its unit, not the model."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch.distributed as dist

import zerobench
from zerobench.driver import run_step, start
from zerobench.engine.inspect import locate
from zerobench.judge.command import ReplayCommand
from zerobench.meters.offload import OffloadMeter
from zerobench.meters.traffic import TrafficMeter
from zerobench.scenario import Scenario
from zerobench.subjects.reference import Reference
from zerobench.suites.support.trials import Trials

Bytes = dict[str, int]


def _moved(group: dist.ProcessGroup, name: str, scenario: Scenario) -> list[tuple[int, Bytes]]:
    """For each parameter of a trained engine: the elements of its unit's shard, and the bytes that setting its master
    weight receives, reads and writes."""
    found = []
    with closing(start(Reference, scenario, group)) as subject:
        assert isinstance(subject, Reference)
        run_step(subject, scenario, 0, dist.get_rank(group))
        for parameter in subject.trained.values():
            state, value = locate(parameter)[1], zerobench.safe_get_full_fp32_param(parameter)
            assert state is not None
            assert value is not None
            with TrafficMeter() as traffic, OffloadMeter() as files:
                zerobench.safe_set_full_fp32_param(parameter, value)
            received = sum(each.received for each in traffic.traffic.values())
            found.append((state.unit.shard, {"received": received, **files.bytes}))
    return found


@pytest.mark.parametrize(
    ("stage", "offload"), [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (1, "nvme"), (2, "nvme"), (3, "nvme")]
)
def test_setting_moves_one_unit(reference: Trials, stage: int, offload: Any) -> None:
    """If a client sets a master weight, ranks that keep whole parameters receive the shards of its unit that others
    own. Of the states in files, the rank's own shard of the unit is read and written: master weights and Adam's two
    moments, and the gradient sum is read."""
    scenario = Scenario(stage=stage, offload_optimizer=offload, steps=1, reduce_bucket=1000)
    for by_parameter in reference.ask(ReplayCommand(scenario, "reference"), _moved):
        assert len(by_parameter) > 2
        for shard, moved in by_parameter:
            assert moved["received"] == (4 * shard * (scenario.world - 1) if stage in (1, 2) else 0)
            if offload == "nvme":
                assert (moved["file_read"], moved["file_written"]) == (4 * 4 * shard, 3 * 4 * shard)
