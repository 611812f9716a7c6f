"""Saves in the background: training goes on while they write, and they hold the state of the moment of the call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import zerobench
from zerobench.engine.checkpoint import shard_file
from zerobench.engine.checkpoint.background import PendingSave
from zerobench.engine.checkpoint.directory import read_latest
from zerobench.ranks import Pool
from zerobench.suites.api.checkpoint import saved

_LIMIT = 60.0


@contextmanager
def _held_up() -> Iterator[threading.Event]:
    """Inside, no file is written before the event."""
    go, write = threading.Event(), shard_file.write

    def late(*arguments: Any) -> Any:
        assert go.wait(_LIMIT)
        return write(*arguments)

    with mock.patch.object(shard_file, "write", late):
        yield go
        go.set()


#: Each step changes the rate, the scale and what the scaler counts; a save has them as of its call.
_CHANGING: dict[str, Any] = {
    "bf16": {"enabled": False},
    "fp16": {"enabled": True, "initial_scale_power": 2, "loss_scale_window": 1},
    "schedule": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
}


def _train_while_it_saves(group: dist.ProcessGroup | None, directory: Path) -> bool:
    """One rank's part: whether a checkpoint that is written while training goes on has the state of its call, the
    client's too, which it changes meanwhile."""
    running = saved.engine(group=group, **_CHANGING)
    saved.train(running, 2)
    state: dict[str, Any] = {"losses": [0.5], "best": torch.ones(2)}
    with _held_up() as go:
        pending: PendingSave = running.async_save_checkpoint(directory, client_state=state)
        expected = saved.states(running)
        saved.train(running, 3)
        state["losses"].append(0.25)
        state["best"].zero_()
        running.optimizer.param_groups[0]["weight_decay"] = 0.5
        assert not pending.done
        assert not (directory / "latest").exists()
        go.set()
        pending.wait()
    loading = saved.engine(1, group=group, **_CHANGING)
    _, client_state = loading.load_checkpoint(directory)
    assert client_state["losses"] == [0.5]
    assert client_state["best"].tolist() == [1, 1]
    return saved.states(loading) == expected


def test_training_goes_on(tmp_path: Path) -> None:
    """Steps run before a byte is written; the checkpoint has the state before them."""
    assert _train_while_it_saves(None, tmp_path)


def test_the_latest_one_stays(tmp_path: Path) -> None:
    """A save that is not to be the latest one leaves the file that names it."""
    running = saved.engine()
    saved.train(running)
    running.save_checkpoint(tmp_path)
    saved.train(running)
    running.async_save_checkpoint(tmp_path, save_latest=False).wait()
    assert (tmp_path / "global_step2").is_dir()
    assert read_latest(tmp_path) == "global_step1"


def test_training_goes_on_with_two_ranks(pool: Pool, tmp_path: Path) -> None:
    """The collectives of the save do not meet those of training."""
    assert pool.run(_train_while_it_saves, tmp_path, world=2, timeout=_LIMIT) == [True, True]


def test_the_call_copies_and_no_more(tmp_path: Path) -> None:
    """The checksums of the values are taken by the thread, so that training stops for the copy alone."""
    running, digest = saved.engine(), shard_file.digest
    taken: dict[str, int] = {}

    def counted(data: bytes | memoryview) -> str:
        name = threading.current_thread().name
        taken[name] = taken.get(name, 0) + len(data)
        return digest(data)

    saved.train(running)
    with mock.patch.object(shard_file, "digest", counted):
        running.async_save_checkpoint(tmp_path).wait()
    [file] = zerobench.describe_checkpoint(tmp_path)["files"].values()
    assert taken == {"zerobench-checkpoint": file}
    assert zerobench.verify_checkpoint(tmp_path) == file


def test_errors_come_at_the_wait(tmp_path: Path) -> None:
    """If the write fails, wait() raises the error, or else the next save does; the save after that succeeds."""
    running = saved.engine()
    with mock.patch.object(shard_file, "write", side_effect=zerobench.CheckpointError("the drive is gone")):
        running.async_save_checkpoint(tmp_path)
        with pytest.raises(zerobench.CheckpointError, match="the drive is gone"):
            running.save_checkpoint(tmp_path)
        pending = running.async_save_checkpoint(tmp_path)
        with pytest.raises(zerobench.CheckpointError, match="the drive is gone"):
            pending.wait()
    running.save_checkpoint(tmp_path)
    assert saved.engine(1).load_checkpoint(tmp_path)[0] == str(tmp_path / "global_step0")
