"""Monitors: TensorBoard, Weights & Biases, Comet, and CSV files, by DeepSpeed's sections."""

from __future__ import annotations

import csv
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from zerobench.compat.config.monitor_config import JOB, get_monitor_config
from zerobench.compat.errors import MissingLibrary

__all__ = ["MonitorMaster", "get_monitor_config"]


class _Monitor(ABC):
    enabled = True

    @abstractmethod
    def write(self, name: str, value: float, samples: int) -> None:
        """Record one event."""

    @abstractmethod
    def close(self) -> None:
        """Finish."""

    def write_events(self, event_list: Iterable[tuple[str, float, int]]) -> None:
        """Record events."""
        for event in event_list:
            self.write(*event)


class MonitorMaster:
    """The monitors that the configuration enables; rank 0 writes, and other ranks do nothing.

    Each is an attribute, such as ``csv_monitor``; None if it is not enabled. ``tb_monitor.summary_writer`` is torch's.

    Args:
        monitor_config: from :func:`get_monitor_config`.

    Raises:
        MissingLibrary: the library of an enabled monitor is not installed.
    """

    def __init__(self, monitor_config: dict[str, dict[str, Any]]) -> None:
        self.enabled = bool(monitor_config)
        writes = not dist.is_initialized() or dist.get_rank() == 0
        made = {name: _MONITORS[name](section) for name, section in monitor_config.items() if writes}
        self._monitors = list(made.values())
        self.tb_monitor, self.csv_monitor = made.get("tensorboard"), made.get("csv_monitor")
        self.wandb_monitor, self.comet_monitor = made.get("wandb"), made.get("comet")

    def write_events(self, event_list: Iterable[tuple[str, float, int]]) -> None:
        """Record events, each with its name, its value and the number of samples until then."""
        for event in event_list:
            for monitor in self._monitors:
                monitor.write(*event)

    def close(self) -> None:
        """Finish all of them."""
        for monitor in self._monitors:
            monitor.close()


def _folder(section: dict[str, Any]) -> Path:
    return Path(section.get("output_path") or "") / str(section.get("job_name", JOB))


def _library(name: str, section: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingLibrary(f"{section}.enabled needs the package {name.partition('.')[0]}: {error}") from None


class _TensorBoard(_Monitor):
    def __init__(self, section: dict[str, Any]) -> None:
        library = _library("torch.utils.tensorboard", "tensorboard")
        self.summary_writer = library.SummaryWriter(log_dir=str(_folder(section)))

    def write(self, name: str, value: float, samples: int) -> None:
        self.summary_writer.add_scalar(name, value, samples)
        self.summary_writer.flush()

    def close(self) -> None:
        self.summary_writer.close()


class _Wandb(_Monitor):
    def __init__(self, section: dict[str, Any]) -> None:
        self._wandb = _library("wandb", "wandb")
        names = ("group", "team", "project")
        group, team, project = (section.get(name) for name in names)
        self._run = self._wandb.init(project=project or "deepspeed", group=group, entity=team)

    def write(self, name: str, value: float, samples: int) -> None:
        self._wandb.log({name: value}, step=samples)

    def close(self) -> None:
        self._run.finish()


class _Comet(_Monitor):
    """Leaves out events of a name that come less than ``samples_log_interval`` samples after the last one."""

    def __init__(self, section: dict[str, Any]) -> None:
        names = ("api_key", "project", "workspace", "experiment_key", "mode", "online")
        self._experiment = _library("comet_ml", "comet").start(**{name: section.get(name) for name in names})
        if section.get("experiment_name") is not None:
            self._experiment.set_name(section["experiment_name"])
        self._interval, self._last = section.get("samples_log_interval", 100), dict[str, int]()

    def write(self, name: str, value: float, samples: int) -> None:
        if name not in self._last or samples - self._last[name] >= self._interval:
            self._last[name] = samples
            self._experiment.log_metric(name, value, step=samples)

    def close(self) -> None:
        self._experiment.end()


class _Csv(_Monitor):
    """A file for each event, ``step`` and the event's last word as its header."""

    def __init__(self, section: dict[str, Any]) -> None:
        self._folder = _folder(section)
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, value: float, samples: int) -> None:
        path = self._folder / f"{name.replace('/', '_')}.csv"
        begun = path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            if not begun:
                rows.writerow(["step", name.rpartition("/")[2]])
            rows.writerow([samples, value])

    def close(self) -> None:
        """Each event has been written."""


#: By the section that enables it.
_MONITORS: dict[str, Callable[[dict[str, Any]], _Monitor]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "csv_monitor": _Csv,
    "comet": _Comet,
}
