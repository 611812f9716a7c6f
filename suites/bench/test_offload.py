"""Offload to files: the update of a step, beside a plain sequential read and write of as many bytes of a same file.

Both go through the same memory, for a drive may be twice as fast to one buffer as to the next (docs/notes/offload.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch import nn

import zerobench
from zerobench.engine.state.scratch import ScratchFile
from zerobench.meters import OffloadMeter
from zerobench.results import Json
from zerobench.suites.bench.kernels import turns
from zerobench.suites.bench.replaying import CLOCK
from zerobench.suites.bench.runs import Runs

_BLOCKS, _WIDTH = 8, 2048  # 33.5 million elements: 400 MB of fp32 states and 134 MB of gradient sums
_SUB_GROUP = 1 << 20
#: Engines one after the other, each with memory of its own.
_ENGINES = 5
_ROUNDS = 4
#: The least ratio of the update's speed to the plain speed.
_SHARE = 0.8
_REQUEST = 8 << 20


@pytest.mark.benchmark(timer=CLOCK)
def test_update_from_files(
    tmp_path: Path, runs: Runs, carry: Callable[[Json, list[float]], None], request: pytest.FixtureRequest
) -> None:
    """Reading, checking, updating and writing back take at most a quarter longer than reading and writing alone.

    Under --quick the ratio is shown and not judged, as for the whole quick grid.
    """
    runs.here()
    elements, size, pairs = 0, 0, []
    for index in range(_ENGINES):
        runs.progress(f"update from files: engine {index + 1} of {_ENGINES}")
        engine = _engine(tmp_path, runs.device)
        elements = sum(parameter.numel() for parameter in engine.module.parameters())
        moved = _moved(engine)
        size = sum(moved.values())
        plain = _Plain(tmp_path, engine, moved["file_read"], moved["file_written"])
        pairs += [_pair(plain, engine, index) for index in range(_ROUNDS)]
        engine.destroy()
        plain.close()
    alone, update = ([each[i] for each in pairs] for i in range(2))
    against = f"{'direct' if plain.direct else 'cached'} reads and writes alone"
    found = turns.result("update from files", elements, size, "cpu", {turns.KERNEL: update, against: alone}, against)
    runs.kernels.append(found)
    carry({"kernel": found}, update)
    assert found["ratio"] >= _SHARE or request.config.getoption("--quick")


def _pair(plain: _Plain, engine: zerobench.Engine, index: int) -> tuple[float, float]:
    """Seconds of the plain run and of the update; they alternate in being first."""
    _backward(engine)
    if index % 2:
        return _timed(plain.run), _timed(engine.step)
    update = _timed(engine.step)
    return _timed(plain.run), update


def _engine(directory: Path, device: str) -> zerobench.Engine:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_BLOCKS)))
    nvme = {"device": "nvme", "nvme_path": str(directory), "pipeline_read": True, "pipeline_write": True}
    zero = {"stage": 2, "sub_group_size": _SUB_GROUP, "offload_optimizer": nvme}
    config = {"train_batch_size": 1, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    adam = {"type": "AdamW", "params": {"lr": 1e-4}}
    return zerobench.initialize(model, {**config, "optimizer": adam, "zero_optimization": zero}, device=device)[0]


def _backward(engine: zerobench.Engine) -> None:
    """A backward, and the writes of the gradient sums that it has started."""
    device = next(engine.module.parameters()).device
    engine.backward(engine(torch.ones(1, _WIDTH, dtype=torch.bfloat16, device=device)).float().square().mean())
    engine.stores.settle()


def _moved(engine: zerobench.Engine) -> dict[str, int]:
    """Bytes that the update reads and writes."""
    _backward(engine)
    with OffloadMeter() as meter:
        engine.step()
    return {name: meter.bytes[name] for name in ("file_read", "file_written")}


class _Plain:
    """A file of its own, read from start to end and written through an engine's buffers, with no other work."""

    def __init__(self, directory: Path, engine: zerobench.Engine, read: int, written: int) -> None:
        self.read, self.written = read, written
        self._file = ScratchFile(directory, torch.device("cpu"))
        self.direct = self._file.direct
        self._file.reserve(max(read, written))
        memory = [buffer.numpy() for buffer in engine.stores.host()["buffers"]]
        self._pieces = [each[at : at + _REQUEST] for each in memory for at in range(0, len(each), _REQUEST)]
        self._through(os.pwritev, max(read, written))

    def run(self) -> None:
        """Read as many bytes, then write as many."""
        self._through(os.preadv, self.read)
        self._through(os.pwritev, self.written)

    def close(self) -> None:
        """Give the file's space back."""
        self._file.close()

    def _through(self, request: Callable[..., int], size: int) -> None:
        at = 0
        for piece in cycle(self._pieces):
            at += request(self._file._descriptor, [piece[: size - at]], at)
            if at == size:
                return


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
