"""The sections of the monitors, as ``deepspeed.monitor.config`` gives them."""

from __future__ import annotations

from typing import Any

from zerobench.compat.config.readable import Section
from zerobench.compat.config.surface import Comet, Files, Wandb

#: The default of ``job_name``.
JOB = "DeepSpeedJobName"

_FILES: dict[str, Any] = {**Files().model_dump(), "output_path": "", "job_name": JOB}
#: By the section that enables it: the keys, with DeepSpeed's defaults.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "tensorboard": _FILES,
    "wandb": {**Wandb().model_dump(), "project": "deepspeed"},
    "csv_monitor": _FILES,
    "comet": Comet().model_dump(),
}


class MonitorConfig(dict[str, dict[str, Any]]):
    """The sections of the enabled monitors; each monitor's section is an attribute, with its defaults."""

    def __init__(self, param_dict: dict[str, Any]) -> None:
        sections = {name: param_dict.get(name) for name in _DEFAULTS}
        self._given = {name: each for name, each in sections.items() if isinstance(each, dict)}
        super().__init__({name: each for name, each in self._given.items() if each.get("enabled")})

    @property
    def enabled(self) -> bool:
        """Whether a monitor is enabled."""
        return bool(self)

    def __getattr__(self, name: str) -> Section:
        if name not in _DEFAULTS:
            raise AttributeError(f"there is no monitor {name!r}; the monitors are {', '.join(_DEFAULTS)}")
        return Section(self._given.get(name, {}), _DEFAULTS[name])


def get_monitor_config(param_dict: dict[str, Any]) -> MonitorConfig:
    """The sections of the enabled monitors."""
    return MonitorConfig(param_dict)
