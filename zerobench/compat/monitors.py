"""Monitors: TensorBoard, Weights & Biases, and CSV files, by DeepSpeed's sections."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from zerobench.engine.errors import ConfigError

_JOB = "DeepSpeedJobName"


class _Monitor(Protocol):
    def write(self, name: str, value: float, samples: int) -> None:
        """Record one event."""

    def close(self) -> None:
        """Finish."""


class Monitors:
    """The monitors that the configuration enables, on rank 0.

    Raises:
        ConfigError: the library of an enabled monitor is not installed.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        made: dict[str, Callable[[dict[str, Any]], _Monitor]] = {
            "tensorboard": _TensorBoard,
            "wandb": _Wandb,
            "csv_monitor": _Csv,
        }
        given = {name: config.get(name) for name in made}
        enabled = {name: each for name, each in given.items() if isinstance(each, dict) and each.get("enabled")}
        self._monitors: list[_Monitor] = [made[name](section) for name, section in enabled.items()]

    def write(self, events: dict[str, float], samples: int) -> None:
        """Record events at this number of samples."""
        for monitor in self._monitors:
            for name, value in events.items():
                monitor.write(name, value, samples)

    def close(self) -> None:
        """Finish all of them."""
        for monitor in self._monitors:
            monitor.close()


def _folder(section: dict[str, Any]) -> Path:
    return Path(section.get("output_path") or "") / str(section.get("job_name", _JOB))


def _library(name: str, section: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{section}.enabled needs the package {name.partition('.')[0]}: {error}") from None


class _TensorBoard:
    def __init__(self, section: dict[str, Any]) -> None:
        library = _library("torch.utils.tensorboard", "tensorboard")
        self._writer = library.SummaryWriter(log_dir=str(_folder(section)))

    def write(self, name: str, value: float, samples: int) -> None:
        self._writer.add_scalar(name, value, samples)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, section: dict[str, Any]) -> None:
        self._wandb = _library("wandb", "wandb")
        names = ("group", "team", "project")
        group, team, project = (section.get(name) for name in names)
        self._run = self._wandb.init(project=project or "deepspeed", group=group, entity=team)

    def write(self, name: str, value: float, samples: int) -> None:
        self._wandb.log({name: value}, step=samples)

    def close(self) -> None:
        self._run.finish()


class _Csv:
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
