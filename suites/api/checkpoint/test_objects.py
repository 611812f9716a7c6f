"""Client states as scripts have them: random states, averages of weights, best scores, arguments, histories."""

from __future__ import annotations

import argparse
import datetime as dt
import random
from collections import OrderedDict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zerobench
from zerobench.engine.checkpoint import plain
from zerobench.suites.api.checkpoint import saved

_VALUES: dict[Any, Any] = {
    "random": random.getstate(),
    "numpy's random": np.random.RandomState(1).get_state(),
    "torch's random": torch.Generator().manual_seed(3).get_state(),
    "score": np.float64(0.5),
    "small score": np.float32(float("nan")),
    "better": np.bool_(True),
    "count": np.int64(3),
    "history": deque([1.5, 2.5], maxlen=4),
    "average": OrderedDict(w=torch.arange(6.0).view(2, 3).t(), b=torch.ones(2, dtype=torch.bfloat16)),
    "empty": torch.empty(0, 3),
    "number": torch.tensor(2, dtype=torch.int64),
    "trained": torch.nn.Parameter(torch.ones(2)),
    "part of a storage": torch.arange(8)[3:5],
    "arguments": argparse.Namespace(lr=1e-3, out=Path("a/b"), dtype=torch.float16, device=torch.device("cpu"), ids={2}),
    "names": SimpleNamespace(a=[frozenset({1})], size=torch.Size([2, 3])),
    "array": np.arange(6, dtype=np.int32).reshape(2, 3),
    "bytes": b"\x00\xff",
    "number of two parts": 1 + 2j,
    "when": dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC),
    "how long": dt.timedelta(days=1, microseconds=3),
    7: "a key that is no string",
    "nested": {("a", 1): [np.ones(2), {"$type": "tensor"}]},
}


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and have the same types, at every depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return (one.dtype, one.requires_grad) == (other.dtype, other.requires_grad) and torch.equal(one, other)
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, argparse.Namespace | SimpleNamespace):
        return _same(vars(one), vars(other))
    return bool(one == other)


def test_a_client_state_comes_back(tmp_path: Path) -> None:
    """With its types and bits."""
    saved.engine(0).save_checkpoint(tmp_path, client_state=_VALUES)
    _, loaded = saved.engine(1).load_checkpoint(tmp_path)
    assert [name for name in _VALUES if not _same(_VALUES[name], loaded[name])] == []
    assert loaded["history"].maxlen == 4


@pytest.mark.parametrize(
    "value",
    [
        {"$type": "tensor", "value": {"dtype": "load", "shape": [1], "requires_grad": False, "data": "AA=="}},
        {"$type": "tensor", "value": {"dtype": "float32", "shape": [2], "requires_grad": False, "data": "AAAAAA=="}},
        {"$type": "numpy", "value": {"dtype": "|O", "shape": [1], "data": "AAAAAAAAAAA="}},
        {"$type": "device", "value": "nowhere"},
        {"$type": "system", "value": "ls"},
    ],
)
def test_a_damaged_object(value: Any) -> None:
    """One error; nothing but the known objects is made."""
    with pytest.raises(zerobench.CheckpointError, match="is not a value of a checkpoint"):
        plain.decode(value)


def test_the_latest_tag_is_read_as_deepspeeds(tmp_path: Path) -> None:
    """Scripts strip the text of the file; older checkpoints have their checksum in digits, and load."""
    saved.engine().save_checkpoint(tmp_path)
    latest = tmp_path / "latest"
    assert latest.read_text(encoding="utf-8").strip() == "global_step0"
    assert saved.engine().load_checkpoint(tmp_path)[0] == str(tmp_path / "global_step0")
    latest.write_text("global_step0\n1b5e6b5c0a2f9d13\n", encoding="utf-8")
    with pytest.raises(zerobench.CheckpointError, match="checksum of its tag"):
        saved.engine().load_checkpoint(tmp_path)
