"""The schedules' parameters as arguments of a script, and a schedule's section made of them."""

from __future__ import annotations

import argparse
from typing import Any

#: The arguments of each schedule, with DeepSpeed's defaults; a default False makes a flag.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "LRRangeTest": {
        "lr_range_test_min_lr": 0.001,
        "lr_range_test_step_rate": 1.0,
        "lr_range_test_step_size": 1000,
        "lr_range_test_staircase": False,
    },
    "OneCycle": {
        "cycle_first_step_size": 1000,
        "cycle_first_stair_count": -1,
        "cycle_second_step_size": -1,
        "cycle_second_stair_count": -1,
        "decay_step_size": 1000,
        "cycle_min_lr": 0.01,
        "cycle_max_lr": 0.1,
        "decay_lr_rate": 0.0,
        "cycle_min_mom": 0.8,
        "cycle_max_mom": 0.9,
        "decay_mom_rate": 0.0,
    },
    "WarmupLR": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000, "warmup_type": "log"},
    "WarmupCosineLR": {
        "warmup_num_steps": 1000,
        "warmup_type": "log",
        "warmup_min_ratio": 0.01,
        "cos_min_ratio": 0.01,
    },
}
_ARGUMENTS["WarmupDecayLR"] = _ARGUMENTS["WarmupLR"]


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add ``--lr_schedule``, ``--cycle_momentum`` and the schedules' parameters to a script's parser."""
    group = parser.add_argument_group("Convergence Tuning", "Convergence tuning configurations")
    group.add_argument("--lr_schedule", type=str, default=None, help="the schedule's name")
    group.add_argument("--cycle_momentum", default=False, action="store_true", help="cycle the momentum, too")
    defaults = {name: value for each in _ARGUMENTS.values() for name, value in each.items()}
    for name, value in defaults.items():
        kind: dict[str, Any] = {"action": "store_true"} if value is False else {"type": type(value)}
        group.add_argument(f"--{name}", default=value, help="a parameter of the schedule", **kind)
    return parser


def get_config_from_args(args: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The section ``scheduler`` that the arguments ask for, or None and the reason."""
    name = getattr(args, "lr_schedule", None)
    if name is None:
        return None, "--lr_schedule not specified on command line"
    if name not in _ARGUMENTS:
        return None, f"{name} is not supported LR schedule"
    given = {each: getattr(args, each, None) for each in _ARGUMENTS[name]}
    return {"type": name, "params": {each: value for each, value in given.items() if value is not None}}, None


#: The parameter that is the rate of a schedule.
_RATE = {"LRRangeTest": "lr_range_test_min_lr", "OneCycle": "cycle_max_lr"}


def get_lr_from_config(config: dict[str, Any]) -> tuple[float | None, str]:
    """The rate in a section ``scheduler``, or None and the reason."""
    for key in ("type", "params"):
        if key not in config:
            return None, f"LR schedule {key} not defined in config"
    name, params = config["type"], config["params"]
    if name not in _ARGUMENTS:
        return None, f"{name} is not a valid LR schedule"
    if name == "WarmupCosineLR":
        return None, "WarmupCosineLR scales the optimizer learning rate by a ratio, so its params define no lr"
    return params[_RATE.get(name, "warmup_max_lr")], ""
