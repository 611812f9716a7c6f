"""The schedules give DeepSpeed's learning rates and momentums, to the last bit."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerobench.compat import schedules
from zerobench.suites.compat import oracle
from zerobench.suites.compat.configuration.schedules import CASES, GOLDEN, course, course_of_deepspeed


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}-{CASES[number][0]}")
def test_recorded_courses(number: int) -> None:
    """The courses that DeepSpeed's classes gave when they were recorded."""
    assert course(schedules, *CASES[number]) == json.loads(GOLDEN.read_text(encoding="utf-8"))[number]


_RATES = st.floats(0, 1, allow_subnormal=False)
_SIZES = st.integers(1, 30)
_KINDS = st.sampled_from(["log", "linear"])
_WARMUP = {"warmup_num_steps": _SIZES, "warmup_type": _KINDS}
_PARAMS: dict[str, Any] = {
    "LRRangeTest": {
        "lr_range_test_min_lr": _RATES,
        "lr_range_test_step_size": _SIZES,
        "lr_range_test_step_rate": _RATES,
        "lr_range_test_staircase": st.booleans(),
    },
    "OneCycle": {
        "cycle_min_lr": _RATES,
        "cycle_max_lr": _RATES,
        "cycle_first_step_size": _SIZES,
        "cycle_second_step_size": st.none() | st.integers(0, 30),
        "cycle_first_stair_count": st.integers(0, 5),
        "decay_step_size": st.integers(0, 4),
        "decay_lr_rate": _RATES,
        "cycle_min_mom": _RATES,
        "cycle_max_mom": _RATES,
        "decay_mom_rate": _RATES,
    },
    "WarmupLR": {"warmup_min_lr": _RATES, "warmup_max_lr": st.none() | _RATES, **_WARMUP},
    "WarmupDecayLR": {"total_num_steps": _SIZES, "warmup_min_lr": _RATES, "warmup_max_lr": _RATES, **_WARMUP},
    "WarmupCosineLR": {"total_num_steps": _SIZES, "warmup_min_ratio": _RATES, "cos_min_ratio": _RATES, **_WARMUP},
}

_REQUIRED: dict[str, dict[str, Any]] = {
    "OneCycle": {"cycle_min_lr": 0.0, "cycle_max_lr": 1.0},
    "WarmupDecayLR": {"total_num_steps": 9},
    "WarmupCosineLR": {"total_num_steps": 9},
}


@oracle.NEEDS_DEEPSPEED
@pytest.mark.parametrize("name", _PARAMS)
@given(data=st.data())
def test_drawn_parameters(name: str, data: st.DataObject) -> None:
    """Drawn parameters, against the classes of the installed DeepSpeed."""
    params = data.draw(st.fixed_dictionaries({}, optional=_PARAMS[name]))
    given_all = {**_REQUIRED.get(name, {}), **params}
    assert course(schedules, name, given_all, 24) == oracle.ask(course_of_deepspeed, name, given_all, 24)


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_warmup_steps_are_refused(steps: Any) -> None:
    """A number of steps that DeepSpeed refuses is refused with its words."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ValueError, match=f"warmup_num_steps must be a positive integer, got {steps}"):
        schedules.WarmupLR(optimizer, warmup_num_steps=steps)
