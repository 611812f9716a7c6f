"""Monitors: the calls of their libraries, and the files that the installed libraries write."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerobench.compat.config.deepspeed_config import DeepSpeedConfig
from zerobench.compat.profiling.monitors import MonitorMaster, get_monitor_config

_EVENTS = [("Train/Samples/lr", 0.5, 16), ("Train/Samples/lr", 0.25, 32)]


class _Library:
    """Stands in for a monitor's library: it records the calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> _Library:
            self.calls.append((name, args, kwargs))
            return self

        return call


def _written(**sections: dict[str, Any]) -> None:
    monitors = MonitorMaster(get_monitor_config({name: {"enabled": True, **each} for name, each in sections.items()}))
    monitors.write_events(_EVENTS)
    monitors.close()


def test_calls_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """They call their libraries as DeepSpeed does: the writer's folder, the run's names, a number for each event."""
    board, wandb = _Library(), _Library()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=board.SummaryWriter))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    _written(tensorboard={"output_path": "logs", "job_name": "job"}, wandb={"project": "p", "group": "g", "team": "t"})
    first, second = _EVENTS
    assert board.calls == [
        ("SummaryWriter", (), {"log_dir": "logs/job"}),
        ("add_scalar", first, {}),
        ("flush", (), {}),
        ("add_scalar", second, {}),
        ("flush", (), {}),
        ("close", (), {}),
    ]
    assert wandb.calls == [
        ("init", (), {"project": "p", "group": "g", "entity": "t"}),
        *[("log", ({name: value},), {"step": samples}) for name, value, samples in _EVENTS],
        ("finish", (), {}),
    ]


def test_each_by_its_name(tmp_path: Path) -> None:
    """A monitor that is enabled is an attribute, which takes events; the others are None."""
    master = MonitorMaster(get_monitor_config({"csv_monitor": {"enabled": True, "output_path": str(tmp_path)}}))
    assert (master.tb_monitor, master.wandb_monitor, master.comet_monitor) == (None, None, None)
    assert master.csv_monitor is not None
    assert master.csv_monitor.enabled
    master.csv_monitor.write_events([("a/b", 1.5, 4)])
    assert (tmp_path / "DeepSpeedJobName" / "a_b.csv").read_text().split() == ["step,b", "4,1.5"]


def test_their_sections_to_read(tmp_path: Path) -> None:
    """Each is an attribute, given or not, with DeepSpeed's defaults."""
    given = {"csv_monitor": {"enabled": True, "output_path": str(tmp_path)}, "wandb": {"enabled": False, "team": "t"}}
    read = DeepSpeedConfig({"train_batch_size": 8, **given}).monitor_config
    for config in (read, get_monitor_config(given)):
        assert (config.enabled, config.csv_monitor.enabled, config.csv_monitor.output_path) == (
            True,
            True,
            str(tmp_path),
        )
        assert config.csv_monitor.job_name == config.tensorboard.job_name == "DeepSpeedJobName"
        assert (config.tensorboard.enabled, config.tensorboard.output_path) == (False, "")
        assert (config.wandb.enabled, config.wandb.team, config.wandb.project) == (False, "t", "deepspeed")
        assert (config.comet.enabled, config.comet.samples_log_interval) == (False, 100)
        with pytest.raises(
            AttributeError, match="no monitor 'tensorbord'; the monitors are tensorboard, wandb, csv_mon"
        ):
            config.tensorbord  # noqa: B018
    assert not get_monitor_config({}).enabled


def test_calls_of_comet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that come sooner than samples_log_interval are left out."""
    comet = _Library()
    monkeypatch.setitem(sys.modules, "comet_ml", comet)
    _written(comet={"project": "p", "experiment_name": "n", "samples_log_interval": 20})
    empty = dict.fromkeys(("api_key", "workspace", "experiment_key", "mode", "online"))
    assert comet.calls == [
        ("start", (), {"project": "p", **empty}),
        ("set_name", ("n",), {}),
        ("log_metric", ("Train/Samples/lr", 0.5), {"step": 16}),
        ("end", (), {}),
    ]


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    """TensorBoard reads the events from its files."""
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the package tensorboard"
    )
    _written(tensorboard={"output_path": str(tmp_path), "job_name": "job"})
    events = reading.EventAccumulator(str(tmp_path / "job"))
    events.Reload()
    assert [(each.value, each.step) for each in events.Scalars("Train/Samples/lr")] == [(0.5, 16), (0.25, 32)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline run has the events in its history."""
    wandb = pytest.importorskip("wandb", reason="needs the package wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    _written(wandb={"project": "p", "group": "g"})
    assert wandb.run is None
    [file] = tmp_path.rglob("*.wandb")
    end = time.monotonic() + 60
    while file.read_bytes().count(b"Train/Samples/lr") < len(_EVENTS):  # a process of wandb writes it
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_comet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline experiment is written to an archive."""
    pytest.importorskip("comet_ml", reason="needs the package comet_ml")
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path))
    _written(comet={"project": "p", "online": False})
    assert [path.suffix for path in tmp_path.iterdir()] == [".zip"]
