"""Offload to files: the update of a step, beside a plain sequential read and write of as many bytes of a same file."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import zerobench
from engine.offload.files import ScratchFile
from zerobench.meters import OffloadMeter

_BLOCKS, _WIDTH = 8, 2048  # 33.5 million elements: 400 MB of fp32 states and 134 MB of gradient sums
_ROUNDS = 9
#: The least share of the plain speed that the update is to reach.
_SHARE = 0.8
_REQUEST = 8 << 20


def test_update_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> None:
    """Reading, checking, updating and writing back take at most a quarter longer than reading and writing alone.

    Under --quick that is shown and not judged, as nothing of the quick grid is.
    """
    engine = _engine(tmp_path)
    moved = _moved(engine)
    plain = _Plain(tmp_path, moved["file_read"], moved["file_written"])
    update: list[float] = []
    alone: list[float] = []
    for index in range(_ROUNDS):
        _backward(engine)
        pair = (plain.run, alone), (engine.step, update)
        for work, seconds in pair if index % 2 else pair[::-1]:
            seconds.append(_timed(work))
    engine.destroy()
    ratios = [one / other for one, other in zip(alone, update, strict=True)]
    low, median, high = statistics.quantiles(ratios, method="inclusive")
    size, slow, fast = sum(moved.values()) / 1e6, statistics.median(alone), statistics.median(update)
    with capsys.disabled():
        print(
            f"\n{size:.0f} MB: plain {slow:.3f} s ({size / slow:.0f} MB/s), update {fast:.3f} s; share of the plain "
            f"speed {median:.2f} ({low:.2f} to {high:.2f}); direct I/O: {plain.direct}"
        )
    assert median >= _SHARE or request.config.getoption("--quick")


def _engine(directory: Path) -> zerobench.Engine:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_BLOCKS)))
    nvme = {"device": "nvme", "nvme_path": str(directory), "pipeline_read": True, "pipeline_write": True}
    zero = {"stage": 2, "sub_group_size": _REQUEST // 4, "offload_optimizer": nvme}
    config = {"train_batch_size": 1, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    adam = {"type": "AdamW", "params": {"lr": 1e-4}}
    return zerobench.initialize(model, {**config, "optimizer": adam, "zero_optimization": zero})[0]


def _backward(engine: zerobench.Engine) -> None:
    """A backward, and the writes of the gradient sums that it has started."""
    engine.backward(engine(torch.ones(1, _WIDTH, dtype=torch.bfloat16)).float().square().mean())
    engine.arrangement.settle()


def _moved(engine: zerobench.Engine) -> dict[str, int]:
    """Bytes that the update reads and writes."""
    _backward(engine)
    with OffloadMeter() as meter:
        engine.step()
    return {name: meter.bytes[name] for name in ("file_read", "file_written")}


class _Plain:
    """A file of its own, read from start to end and written, request by request, with nothing else to do."""

    def __init__(self, directory: Path, read: int, written: int) -> None:
        self.read, self.written = read, written
        self._file = ScratchFile(directory)
        self.direct = self._file.direct
        self._file.reserve(max(read, written))
        self._memory = mmap.mmap(-1, _REQUEST)
        self._memory.write(os.urandom(_REQUEST))
        self._through(os.pwritev, max(read, written))

    def run(self) -> None:
        """Read as many bytes, then write as many."""
        self._through(os.preadv, self.read)
        self._through(os.pwritev, self.written)

    def _through(self, request: Callable[..., int], size: int) -> None:
        for at in range(0, size, _REQUEST):
            request(self._file._descriptor, [memoryview(self._memory)[: min(_REQUEST, size - at)]], at)


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
