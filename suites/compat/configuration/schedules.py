"""Schedules with parameters, and the rates and momentums that a package's classes give for them.

``python -m zerobench.suites.compat.configuration.schedules`` records them from DeepSpeed in ``schedules.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

GOLDEN = Path(__file__).with_name("schedules.json")

#: Steps of a schedule; each case has its parameters on this scale.
STEPS = 40

CASES: list[tuple[str, dict[str, Any]]] = [
    ("LRRangeTest", {}),
    ("LRRangeTest", {"lr_range_test_min_lr": 3e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 0.3}),
    ("LRRangeTest", {"lr_range_test_min_lr": [1e-4, 3e-3], "lr_range_test_step_size": 7, "lr_range_test_staircase": 1}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 3e-3, "cycle_first_step_size": 11}),
    (
        "OneCycle",
        {
            "cycle_min_lr": [1e-4, 2e-4],
            "cycle_max_lr": 3e-3,
            "cycle_first_step_size": 7,
            "cycle_second_step_size": 13,
            "cycle_first_stair_count": 3,
            "cycle_second_stair_count": 4,
            "decay_step_size": 3,
            "decay_lr_rate": 0.1,
            "decay_mom_rate": 0.01,
        },
    ),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 3e-3, "cycle_momentum": False, "cycle_first_step_size": 3}),
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_num_steps": 1}),
    ("WarmupLR", {"warmup_max_lr": 3e-5, "warmup_num_steps": 17}),
    ("WarmupLR", {"warmup_min_lr": 1e-6, "warmup_max_lr": [3e-5, 1e-4], "warmup_num_steps": 17}),
    ("WarmupLR", {"warmup_max_lr": 3e-5, "warmup_num_steps": 17, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 5, "warmup_type": "cubic"}),
    ("WarmupDecayLR", {"total_num_steps": 30, "warmup_num_steps": 7}),
    ("WarmupDecayLR", {"total_num_steps": 50, "warmup_max_lr": 3e-5, "warmup_num_steps": 9, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 5, "warmup_num_steps": 9}),
    ("WarmupCosineLR", {"total_num_steps": 30, "warmup_num_steps": 7}),
    ("WarmupCosineLR", {"total_num_steps": 50, "warmup_min_ratio": 0.1, "warmup_num_steps": 9, "cos_min_ratio": 0.01}),
    ("WarmupCosineLR", {"total_num_steps": 5, "warmup_num_steps": 9, "warmup_type": "linear"}),
]


def course(package: ModuleType, name: str, params: dict[str, Any], steps: int = STEPS) -> list[list[str]]:
    """The groups' rates and first betas, as hexadecimal, at first and after each step; a resume in between."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1e-3, 3e-4)]
    optimizer = torch.optim.AdamW(groups)
    schedule = getattr(package, name)(optimizer, **params)
    seen = [_now(optimizer)]
    for step in range(steps):
        if step == steps // 2:
            schedule.load_state_dict(schedule.state_dict())
        schedule.step()
        assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
        seen.append(_now(optimizer))
    return seen


def _now(optimizer: torch.optim.Optimizer) -> list[str]:
    return [float(value).hex() for group in optimizer.param_groups for value in (group["lr"], group["betas"][0])]


def course_of_deepspeed(name: str, params: dict[str, Any], steps: int = STEPS) -> list[list[str]]:
    """The course of the installed DeepSpeed's class."""
    from deepspeed.runtime import lr_schedules

    return course(lr_schedules, name, params, steps)


def _record() -> None:
    courses = [course_of_deepspeed(name, params) for name, params in CASES]
    GOLDEN.write_text("[\n" + ",\n".join(map(json.dumps, courses)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    _record()
