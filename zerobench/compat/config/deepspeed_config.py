"""``deepspeed.DeepSpeedConfig``: a configuration as an object that scripts read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from zerobench.compat.config.defaults import WITHOUT_EFFECT, ZERO_WITHOUT_EFFECT
from zerobench.compat.config.monitor_config import MonitorConfig, get_monitor_config
from zerobench.compat.config.readable import Section
from zerobench.compat.config.settings import Settings, resolve
from zerobench.compat.config.surface import Surface
from zerobench.compat.errors import SettingsError, raised_as
from zerobench.engine.config.schema import Config, accumulation_steps, load
from zerobench.engine.errors import ConfigError


class DeepSpeedConfig:
    """A configuration, read and resolved; the names of the attributes are DeepSpeed's.

    Args:
        config: a dict, a path, or JSON in base64.
        mpu: None; other parallelism is refused.
        mesh_device: None.

    Raises:
        SettingsError: the configuration cannot be used, or another argument is given; it is a ConfigError.
    """

    @raised_as(SettingsError)
    def __init__(self, config: dict[str, Any] | str | Path, mpu: Any = None, mesh_device: Any = None) -> None:
        if mpu is not None or mesh_device is not None:
            raise ConfigError("mpu and mesh_device are refused: the engine has no other parallelism than data's")
        self._read(resolve(config), dist.get_world_size() if dist.is_initialized() else 1)

    @classmethod
    def of(cls, settings: Settings, world: int) -> DeepSpeedConfig:
        """The configuration of an engine."""
        made = cls.__new__(cls)
        made._read(settings, world)
        return made

    def _read(self, settings: Settings, world: int) -> None:
        config = load(settings.engine)
        self._param_dict, self.world_size = settings.raw, world
        self.global_rank = dist.get_rank() if dist.is_initialized() else 0
        self._sections = _defaults(config)
        self.gradient_accumulation_steps = steps = accumulation_steps(config, world)
        micro = config.train_micro_batch_size_per_gpu or (config.train_batch_size or 1) // (world * steps)
        self.train_micro_batch_size_per_gpu, self.train_batch_size = micro, micro * steps * world
        self.zero_optimization_stage = config.zero_optimization.stage
        self.zero_enabled = self.zero_optimization_stage > 0
        self.zero_config, self.float16_config = self._section("zero_optimization"), self._section("fp16")
        self.bfloat16_config = self._section("bf16")
        self.monitor_config: MonitorConfig = get_monitor_config(self._param_dict)
        self.fp16_enabled, self.bfloat16_enabled = config.fp16.enabled, config.bf16.enabled
        self.gradient_clipping = config.gradient_clipping
        optimizer, scheduler = settings.section("optimizer"), settings.section("scheduler")
        self.optimizer_name = name_of_optimizer(optimizer)
        self.optimizer_params = optimizer.get("params")
        self.scheduler_name, self.scheduler_params = scheduler.get("type"), scheduler.get("params")

    def _section(self, name: str) -> Section:
        given = self._param_dict.get(name)
        return Section(given if isinstance(given, dict) else {}, self._sections.get(name) or {})

    def __getattr__(self, name: str) -> Any:
        """A key of the top level, or ``NAME_config`` for a section."""
        if name.startswith("_"):
            raise AttributeError(name)
        values = {**self._sections, **self._param_dict}
        if name.endswith("_config") and isinstance(values.get(name.removesuffix("_config"), {}), dict):
            return self._section(name.removesuffix("_config"))
        if name not in values:
            raise AttributeError(f"the configuration does not give {name!r}; it has {', '.join(values)}")
        return values[name]

    def print_user_config(self) -> None:
        """Print the given values."""
        for key in sorted(self._param_dict):
            print(f"  {key} = {self._param_dict[key]}")


class DeepSpeedZeroConfig(Section):
    """The section ``zero_optimization``, checked as in a configuration: its keys as attributes, with their defaults.

    Args:
        given: the keys of the section.

    Raises:
        SettingsError: a key or a value cannot be used; it is a ValueError.
    """

    def __init__(self, **given: Any) -> None:
        zero = DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "zero_optimization": given}).zero_config
        super().__init__(zero._given, zero._defaults)


def _defaults(config: Config) -> dict[str, Any]:
    """The values of all keys, where the configuration gives none the defaults: the surface's and the engine's."""
    own, engine = Surface().model_dump(), config.model_dump()
    both = {key: {**own[key], **(engine[key] or {})} for key in own.keys() & engine if isinstance(own[key], dict)}
    both["zero_optimization"] = {**ZERO_WITHOUT_EFFECT, **both["zero_optimization"]}
    return {**WITHOUT_EFFECT, **own, **engine, **both}


#: The types that DeepSpeed has an optimizer of its own for; it takes the others from torch.optim, as they are spelled.
_OWN_TYPES = frozenset(["adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"])


def name_of_optimizer(section: dict[str, Any]) -> str | None:
    """The type of the section ``optimizer``, in lower case if it is one of DeepSpeed's own; None if it gives none."""
    given = section.get("type")
    if not isinstance(given, str):
        return None
    return given.lower() if given.lower() in _OWN_TYPES else given
