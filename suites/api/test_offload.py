"""Offload to files that fails: each fault is one clear error, and no file is left in the directory."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import zerobench
from zerobench.bench.runner import Reading, train
from zerobench.engine.config.schema import load
from zerobench.errors import RankFailure
from zerobench.ranks import Pool
from zerobench.scenario import Scenario
from zerobench.suites.api import offloaded
from zerobench.suites.support.checkout import ROOT
from zerobench.suites.support.forked import LIMIT
from zerobench.suites.support.trials import TIME_LIMIT

_PROGRAM = [sys.executable, "-m", "zerobench.suites.api.offloaded"]


def _losses(directory: Path, steps: int = 3, **section: Any) -> list[float]:
    trained = offloaded.engine(directory, **section)
    losses = [float(offloaded.step(trained, index)) for index in range(steps)]
    trained.destroy()
    return losses


_NVME = {"device": "nvme", "nvme_path": "somewhere"}


@pytest.mark.parametrize(
    ("zero", "message"),
    [
        ({"stage": 0, "offload_optimizer": {"device": "cpu"}}, "at stage 0 every rank keeps it; use stage 1 or 2 or 3"),
        (
            {"stage": 2, "offload_param": {"device": "cpu"}},
            "at stage 2 every rank keeps it; use stage 3, or device 'none'",
        ),
        ({"stage": 1, "offload_optimizer": {"device": "nvme"}}, "device 'nvme' needs nvme_path"),
        ({"stage": 1, "offload_optimizer": {"device": "disk"}}, "should be 'none', 'cpu' or 'nvme', got 'disk'"),
        ({"stage": 1, "offload_optimizer": {**_NVME, "device": "cpu"}}, "device 'cpu' has no use for nvme_path"),
        ({"stage": 3, "offload_param": {"device": "cpu", "max_in_cpu": 5}}, "device 'cpu' has no use for max_in_cpu"),
        ({"stage": 1, "offload_optimizer": {**_NVME, "pipeline_raed": True}}, "did you mean 'pipeline_read'?"),
        ({"stage": 3, "offload_param": {**_NVME, "ratio": 0.5}}, "offload_param.ratio: unknown key"),
        (
            {"stage": 1, "offload_optimizer": {**_NVME, "ratio": 1.5}},
            "offload_optimizer.ratio: .* less than or equal to 1",
        ),
        ({"stage": 1, "offload_optimizer": {**_NVME, "buffer_count": 0}}, "buffer_count: .* greater than 0"),
        ({"stage": 1, "offload_optimizer": {**_NVME, "fast_init": True}}, "does not honour it; take it out"),
    ],
)
def test_configurations_that_cannot_be(zero: dict[str, Any], message: str) -> None:
    """Each is one error with its remedy."""
    with pytest.raises(zerobench.ConfigError, match=message):
        load({"train_batch_size": 1, "zero_optimization": zero})


def test_path_is_missing(tmp_path: Path) -> None:
    """A directory that does not exist."""
    with pytest.raises(zerobench.ConfigError, match="nowhere' does not exist; make the directory"):
        offloaded.engine(tmp_path / "nowhere")


def test_path_is_a_file(tmp_path: Path) -> None:
    """A file in place of a directory."""
    (tmp_path / "file").touch()
    with pytest.raises(zerobench.ConfigError, match="file' is not a directory"):
        offloaded.engine(tmp_path / "file")


def test_path_is_not_writable() -> None:
    """A directory in which not even root can make a file."""
    with pytest.raises(zerobench.ConfigError, match=r"no file can be made in nvme_path '/proc/self': .*; name a dir"):
        offloaded.engine("/proc/self")


def test_buffers_are_too_small(tmp_path: Path) -> None:
    """If buffers do not hold even a chunk, the error gives a size in bytes, and that size is enough."""
    with pytest.raises(zerobench.ConfigError, match=r"too few for 3 sub-groups of one chunk \(1024 elem") as refused:
        offloaded.engine(tmp_path, buffer_count=1, buffer_size=1024, pipeline_read=True, pipeline_write=True)
    enough = int(str(refused.value).partition("at once; ")[2].split()[0])
    section = {"buffer_count": 1, "buffer_size": enough // 4, "pipeline_read": True, "pipeline_write": True}
    assert _losses(tmp_path, **section) == _losses(tmp_path)


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 4096, 3 * 4096))


@pytest.mark.slow
def test_quota(tmp_path: Path) -> None:
    """If the process has a limit on the size of files, the engine raises while it is built, with the limit's name."""
    done = _run([*_PROGRAM, str(tmp_path), "1"], preexec_fn=_limit_files)
    assert done.returncode == 1
    assert "OffloadError: could not reserve" in done.stderr
    assert "File too large; free some space, lift the limit" in done.stderr


@pytest.mark.ci
def test_disk_is_full(tmp_path: Path) -> None:
    """A file system of 64 KiB, mounted in a namespace of its own: the engine raises while it is built."""
    mount = f"mount -t tmpfs -o size=64k tmpfs {tmp_path} && exec "
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if _run([*namespace, mount + "true"]).returncode:
        pytest.skip("this system lets nobody but root mount a file system in a namespace; test_quota says the same")
    done = _run([*namespace, mount + f"{' '.join(_PROGRAM)} {tmp_path} 1"])
    assert done.returncode == 1
    assert "OffloadError: could not reserve" in done.stderr
    assert "No space left on device; free some space" in done.stderr


@pytest.mark.parametrize("pipelined", [False, True])
def test_disk_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipelined: bool) -> None:
    """If the system refuses a write in the middle of training, the step that made it raises."""
    trained = offloaded.engine(tmp_path, pipeline_read=pipelined, pipeline_write=pipelined)
    offloaded.step(trained, 0)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        with pytest.raises(
            zerobench.OffloadError, match=r"could not write \d+ bytes .* No space left on device; free some"
        ):
            offloaded.step(trained, 1)
    trained.destroy()


def test_file_is_cut_off(tmp_path: Path) -> None:
    """If a file has become shorter, a read ends too soon."""
    trained = offloaded.engine(tmp_path)
    trained.backward(trained(torch.ones(1, 64)).sum())
    for path in offloaded.files(trained):
        os.truncate(path, 4096)
    with pytest.raises(zerobench.OffloadError, match=r"ends after 4096 bytes, where \d+ bytes were written at 0"):
        trained.step()
    trained.destroy()


def test_file_is_changed(tmp_path: Path) -> None:
    """A file in which one bit was changed."""
    trained = offloaded.engine(tmp_path)
    offloaded.step(trained, 0)
    offloaded.spoil(trained)
    with pytest.raises(zerobench.OffloadError, match=r"does not hold what was written: .* have another checksum"):
        offloaded.step(trained, 1)
    trained.destroy()


def test_a_reading_of_a_changed_file(tmp_path: Path) -> None:
    """Each reading and each edit of the sub-group raises: none returns what the first one has read."""
    trained = offloaded.engine(tmp_path)
    offloaded.step(trained, 0)
    offloaded.spoil(trained)
    [state, *_] = trained.states
    for call in (
        lambda: state.optimizer_store.read(state.portion, "master", 4096, 4097),
        lambda: state.optimizer_store.write(state.portion, "master", 4096, torch.ones(1)),
    ):
        for _ in range(2):
            with pytest.raises(zerobench.OffloadError, match="does not hold what was written"):
                call()
    trained.destroy()


def test_a_spoiled_file_ends_all_ranks() -> None:
    """If one rank's file is spoiled, every rank ends, and the error names that rank."""
    scenario = Scenario(world=2, stage=2, offload_optimizer="nvme")
    with (
        Pool(2) as pool,
        pytest.raises(RankFailure, match=r"rank 1 raised OffloadError: a file in .* another checksum"),
    ):
        pool.run(
            train, "zerobench.suites.api.offloaded:SpoilsItsFile", scenario, Reading(), world=2, timeout=TIME_LIMIT
        )


def test_two_runs_in_one_directory(tmp_path: Path) -> None:
    """Two runs that alternate in one directory train as if alone."""
    alone = _losses(tmp_path)
    one, other = offloaded.engine(tmp_path), offloaded.engine(tmp_path)
    both = [[float(offloaded.step(each, index)) for each in (one, other)] for index in range(3)]
    one.destroy()
    other.destroy()
    assert both == [[loss, loss] for loss in alone]


@pytest.mark.ci
def test_killed_in_the_middle(tmp_path: Path) -> None:
    """A killed run leaves no file in the directory, and the next one trains as if alone."""
    with subprocess.Popen([*_PROGRAM, str(tmp_path), "100000"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        first = [float(killed.stdout.readline()) for _ in range(3)]
        assert list(tmp_path.iterdir()) == []
        killed.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
    assert _losses(tmp_path) == first


@pytest.mark.slow
def test_nothing_is_left_at_exit(tmp_path: Path) -> None:
    """Neither a closed run nor one that just ends leaves a file, or a thread that keeps it from ending."""
    done = _run([*_PROGRAM, str(tmp_path), "2"])
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_direct_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file system has no direct I/O, the page cache serves, with the same numbers."""
    expected = _losses(tmp_path)
    original = fcntl.fcntl

    def refuses(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return original(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", refuses)
    trained = offloaded.engine(tmp_path)
    assert not any(file.direct for file in trained.stores._files)
    assert [float(offloaded.step(trained, index)) for index in range(3)] == expected
    trained.destroy()


def _run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False, **options)
