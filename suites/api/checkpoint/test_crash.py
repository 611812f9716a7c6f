"""Saves that are killed, that run side by side, or that lose a rank: the last complete checkpoint stays loadable."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import torch.distributed as dist

import zerobench
from zerobench.engine.checkpoint import directory as names
from zerobench.engine.checkpoint import shard_file
from zerobench.engine.checkpoint.deepspeed import pickles
from zerobench.ranks import Pool, RankFault
from zerobench.suites.api.checkpoint import saved
from zerobench.suites.api.checkpoint.universal import convert
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import Program

pytestmark = pytest.mark.ci

_LIMIT = 60.0
#: Seconds for a program to start and to save once, on a machine that has other work as well.
_STARTED = 600.0


@contextmanager
def _saving(directory: Path, ranks: int) -> Iterator[Program]:
    """A program that saves for ever; killed at the end of the context."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Program(
        "-m", "zerobench.suites.api.checkpoint.saved", str(directory), str(ranks), cwd=directory.parent, env=env
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def _wait_for_a_save(directory: Path, program: Program, before: int | None) -> None:
    """Until ``latest`` is another file than before."""
    end = time.monotonic() + _STARTED
    while _latest(directory) == before:
        assert program.returncode is None, program.communicate(1.0)
        assert time.monotonic() < end
        time.sleep(0.01)


def _latest(directory: Path) -> int | None:
    """The number that the file system gives to each file, of ``latest``; None if there is none."""
    path = directory / "latest"
    return path.stat().st_ino if path.exists() else None


def _demand_all_whole(directory: Path) -> None:
    """Every checkpoint that has a name loads, the latest among them."""
    loading = saved.engine(1)
    tags = [each.name for each in directory.iterdir() if each.is_dir() and not each.name.startswith(".")]
    assert names.read_latest(directory) in tags
    for tag in tags:
        loading.load_checkpoint(directory, tag)
        assert loading.global_steps > 0
        assert loading.micro_steps == loading.global_steps
    assert loading.load_checkpoint(directory)[0] is not None


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("part", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 20))])
def test_killed_at_any_moment(part: int, ranks: int, tmp_path: Path) -> None:
    """After SIGKILL at random moments, to all processes or to one rank, every named checkpoint is whole, and each save
    that did not end has left a folder whose name says so, and which no load reads."""
    draws, directory = random.Random(part), tmp_path / "saved"  # noqa: S311 - the draws of a test
    for _ in range(2 if part == 0 else 5):
        before = _latest(directory)
        with _saving(directory, ranks) as program:
            _wait_for_a_save(directory, program, before)
            time.sleep(draws.uniform(0, 0.3))
            processes = [psutil.Process(int(path.stem)) for path in tmp_path.glob("*.pid")]
            for each in processes[draws.randrange(len(processes)) :]:
                each.kill()
        _, alive = psutil.wait_procs(processes, timeout=_LIMIT)
        assert not alive
        for path in tmp_path.glob("*.pid"):
            path.unlink()
        _demand_all_whole(directory)
        left = {each.name for each in directory.iterdir()} - {"latest", "step0", "step1", "step2"}
        assert left == set(names.leftovers(directory))


@pytest.mark.slow
def test_two_programs_in_one_directory(tmp_path: Path) -> None:
    """Two programs that save under the same tags do not disturb each other: each checkpoint is that of one of them."""
    directory = tmp_path / "saved"
    with _saving(directory, 1) as one, _saving(directory, 1) as other:
        time.sleep(3)
        for program in (one, other):
            assert program.returncode is None, program.communicate(1.0)
    _demand_all_whole(directory)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Pool]:
    """A pool of its own: these tests break it."""
    with Pool(2) as pool:
        yield pool


def _save(group: dist.ProcessGroup, directory: Path, fault: str) -> None:
    """One rank's part of two saves; in the second, rank 1 fails."""
    running = saved.engine(group=group)
    saved.train(running)
    running.save_checkpoint(directory)
    saved.train(running)
    with _failing(shard_file, "write", fault, dist.get_rank(group)):
        running.save_checkpoint(directory)


def _load(group: dist.ProcessGroup, directory: Path, fault: str) -> Any:
    """One rank's part of a load in which rank 1 fails; the states before and after."""
    running, is_own = saved.engine(1, group=group), (directory / "global_step2" / "checkpoint.json").exists()
    before = saved.states(running)
    reading = shard_file if is_own else pickles
    with _failing(reading, "read", fault, dist.get_rank(group)), pytest.raises(zerobench.CheckpointError) as failure:
        running.load_checkpoint(directory)
    return before == saved.states(running), str(failure.value)


def _failing(module: Any, call: str, fault: str, rank: int) -> Any:
    """Rank 1 is killed, or raises, in a call of a module."""

    def fail(*arguments: Any) -> Any:
        if rank == 0:
            return original(*arguments)
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise zerobench.CheckpointError("the drive of rank 1 is gone")

    original = getattr(module, call)
    return mock.patch.object(module, call, fail)


def test_a_rank_dies_while_it_saves(ranks: Pool, tmp_path: Path) -> None:
    """The other ranks end with it, and the checkpoint before stays the latest."""
    with pytest.raises(RankFault, match="rank 1 was killed by SIGKILL"):
        ranks.run(_save, tmp_path, "killed", timeout=_LIMIT)
    _demand_all_whole(tmp_path)
    assert names.read_latest(tmp_path) == "global_step1"


def _own(directory: Path) -> None:
    saved.save_twice(directory)


def _of_deepspeed(directory: Path) -> None:
    saved.save_twice(directory / "own")
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    zerobench.export_deepspeed_checkpoint(directory / "own", directory, config, world=2)


def _universal(directory: Path) -> None:
    _of_deepspeed(directory)
    convert(directory / "global_step2", directory / "universal")
    (directory / "latest").unlink()


_each_layout = pytest.mark.parametrize("make", [_own, _of_deepspeed, _universal])


@_each_layout
def test_a_rank_dies_while_it_loads(make: Callable[[Path], None], ranks: Pool, tmp_path: Path) -> None:
    """The other ranks end with it."""
    make(tmp_path)
    with pytest.raises(RankFault, match="rank 1 was killed by SIGKILL"):
        ranks.run(_load, tmp_path, "killed", timeout=_LIMIT)


def test_a_rank_cannot_save(ranks: Pool, tmp_path: Path) -> None:
    """Every rank raises its error; what was written is removed, and the checkpoint before stays the latest."""
    with pytest.raises(RankFault, match="the drive of rank 1 is gone"):
        ranks.run(_save, tmp_path, "raises", timeout=_LIMIT)
    assert names.leftovers(tmp_path) == []
    _demand_all_whole(tmp_path)
    assert names.read_latest(tmp_path) == "global_step1"


@_each_layout
def test_a_rank_cannot_load(make: Callable[[Path], None], ranks: Pool, tmp_path: Path) -> None:
    """Every rank raises its error, and no engine has changed."""
    make(tmp_path)
    for unchanged, message in ranks.run(_load, tmp_path, "raises", timeout=_LIMIT):
        assert unchanged
        assert message == "the drive of rank 1 is gone"


def _disagree(group: dist.ProcessGroup, directory: Path) -> str:
    running = saved.engine(group=group)
    with pytest.raises(zerobench.CheckpointError) as failure:
        running.save_checkpoint(directory, tag=f"of_rank_{dist.get_rank(group)}")
    return str(failure.value)


def test_ranks_must_save_the_same(ranks: Pool, tmp_path: Path) -> None:
    """Another tag on another rank is one error on both, before anything is written."""
    for message in ranks.run(_disagree, tmp_path, timeout=_LIMIT):
        assert 'rank 1 saves a checkpoint with {"tag": "of_rank_1"' in message
    assert list(tmp_path.iterdir()) == []
