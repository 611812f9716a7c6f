"""Setting a state of one parameter costs its parameter, not the model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

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


def _alternated(group: dist.ProcessGroup, name: str, scenario: Scenario, kind: str) -> tuple[int, int]:
    """The calls of collectives in which a client reads a state of each parameter, and in which it reads and sets one
    after another; at the end every parameter has the set values."""
    calls = []
    with closing(start(Reference, scenario, group)) as subject:
        assert isinstance(subject, Reference)
        run_step(subject, scenario, 0, dist.get_rank(group))
        for sets in (False, True):
            subject.engine.read_cache.clear()
            with TrafficMeter() as traffic:
                before = [_read_and_set(parameter, kind, sets) for parameter in subject.trained.values()]
            calls.append(sum(each.calls for each in traffic.traffic.values()))
        after = [zerobench.safe_get_full_optimizer_state(each, kind) for each in subject.trained.values()]
    assert all(new is not None and torch.equal(new, old + 1) for old, new in zip(before, after, strict=True))
    return calls[0], calls[1]


def _read_and_set(parameter: nn.Parameter, kind: str, sets: bool) -> Tensor:
    value = zerobench.safe_get_full_optimizer_state(parameter, kind)
    assert value is not None
    if sets:
        zerobench.safe_set_full_optimizer_state(parameter, value + 1, kind)
    return value


@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("stage", [1, 3])
def test_setting_gathers_no_unit_again(reference: Trials, stage: int, offload: Any) -> None:
    """A client that reads and sets one parameter after another gathers each unit once."""
    scenario = Scenario(stage=stage, offload_optimizer=offload, steps=1)
    for read, read_and_set in reference.ask(ReplayCommand(scenario, "reference"), _alternated, "exp_avg"):
        assert 0 < read == read_and_set


def _edited_within_steps(
    stage: int, ending: dict[str, Any], dtype: dict[str, Any], offload: dict[str, Any]
) -> list[Tensor]:
    """The gradients of a model in its steps, of which one is edited within each step, and its weights afterwards."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    zero = {"stage": stage, "offload_optimizer": offload, "stage3_param_persistence_threshold": 0}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2}}
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer, "zero_optimization": zero, **ending, **dtype}
    engine = zerobench.initialize(model, config)[0]
    parameters, seen = list(model.parameters()), []
    for index in range(4):
        x = torch.randn(1, 8, generator=torch.Generator().manual_seed(index)).to(
            torch.bfloat16 if dtype else torch.float32
        )
        engine.backward(engine(x).float().square().mean())
        zerobench.safe_set_full_grad(parameters[0], torch.full((8, 8), 0.25))
        seen += [zerobench.safe_get_full_grad(each) for each in parameters]
        if index % 2 or "managed_gradient_accumulation" not in ending:
            engine.step()
    return [each.clone() for each in [*seen, *map(zerobench.safe_get_full_fp32_param, parameters)] if each is not None]


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("ending", [{"gradient_accumulation_steps": 2}, {"managed_gradient_accumulation": False}])
@pytest.mark.parametrize("dtype", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
def test_gradients_within_a_step_are_its_own(
    stage: int, ending: dict[str, Any], dtype: dict[str, Any], tmp_path: Path
) -> None:
    """Between micro-steps, and before a step() that no backward announced, the gradient sum is that of the step, also
    if its owner keeps it off the device: there lies that of the step before."""
    given = stage, ending, dtype
    kept = _edited_within_steps(*given, {"device": "none"})
    for offload in ({"device": "cpu"}, {"device": "nvme", "nvme_path": str(tmp_path), "buffer_size": 4096}):
        moved = _edited_within_steps(*given, offload)
        assert len(moved) == len(kept) == 20
        assert all(map(torch.equal, moved, kept)), offload
