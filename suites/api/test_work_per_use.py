"""The engine's own work for each use of a unit does not grow with their number, in instructions of Python."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import zerobench
from zerobench.engine.native import implementation, on_cpu

_ENGINE = str(Path(zerobench.Engine.__init__.__code__.co_filename).parent)
_WIDTH = 8
#: Every unit is reduced alone, so that backward offers each.
_BATCHES = {"reduce_bucket_size": 32}
#: By name: nothing stays whole; everything does; what is next is gathered ahead, two uses of it; everything is gathered
#: ahead; the units of about six layers stay whole.
_SETTINGS: dict[str, dict[str, int]] = {
    "no prefetch": {"stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0},
    "all whole": {"stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 1 << 40},
    "prefetch": {"stage3_prefetch_bucket_size": 1, "stage3_max_live_parameters": 0},
    "far prefetch": {"stage3_prefetch_bucket_size": 1 << 40, "stage3_max_live_parameters": 0},
    "some whole": {"stage3_prefetch_bucket_size": 1, "stage3_max_live_parameters": 6 * 96},
}


def _instructions(layers: int, settings: dict[str, int]) -> int:
    """The instructions of the third step of a model with that many units, each a batch of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers)))
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {
            "stage": 3,
            "chunk_size": 32,
            "stage3_param_persistence_threshold": 0,
            **_BATCHES,
            **settings,
        },
    }
    engine = zerobench.initialize(model, config)[0]
    for _ in range(2):
        _step(engine)
    count = _counted(engine)
    engine.destroy()
    return count


def _step(engine: zerobench.Engine) -> None:
    engine.backward(engine(torch.ones(2, _WIDTH)).square().mean())
    engine.step()


def _counted(engine: zerobench.Engine) -> int:
    """The instructions of Python that a step executes in the engine's functions."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_ENGINE):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _step(engine)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("name", _SETTINGS)
def test_a_stage_3_step_is_linear_in_the_units(name: str) -> None:
    """Twice as many more units take exactly twice as many more instructions."""
    few, more, many = (_instructions(layers, _SETTINGS[name]) for layers in (8, 16, 32))
    assert many - more == 2 * (more - few), f"{few}, {more} and {many} instructions for 8, 16 and 32 units"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_update_takes_two_native_calls_for_a_unit(stage: int) -> None:
    """Sums of squares and update, though each unit has two parameter groups, alternating, and an idle parameter; and
    two calls in all for norm and factors."""
    if implementation() != "native":
        pytest.skip("the definitions are in use")
    torch.manual_seed(0)
    model = nn.Sequential(*(_Block() for _ in range(3)))
    decays = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, "chunk_size": 32, "stage3_param_persistence_threshold": 0, **_BATCHES},
    }
    engine = zerobench.initialize(model, config, model_parameters=groups)[0]
    engine.backward(engine(torch.ones(2, _WIDTH)).square().mean())
    functions = on_cpu().functions
    counted = {name: mock.Mock(wraps=function) for name, function in functions.items()}
    with mock.patch.dict(functions, counted):
        engine.step()
    units = len([state for state in engine.states if state.unit.trainable])
    once = {"chunk_sumsq": units, "adam_step": units, "tree_sum": 1, "clip_factors": 1}
    assert {name: each.call_count for name, each in counted.items() if each.call_count} == once
    engine.destroy()


class _Block(nn.Module):
    """Two layers of which the second is idle."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]
