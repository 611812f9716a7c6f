"""Loads of checkpoints that are refused, and the states of those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zerobench
from zerobench.suites.api.checkpoint import saved


def demand_refused(engine: zerobench.Engine, directory: Path, message: str, tag: str | None = None) -> None:
    """The load raises the error and changes nothing, and the engine still trains."""
    before = saved.states(engine)
    with pytest.raises(zerobench.CheckpointError, match=message):
        engine.load_checkpoint(directory, tag)
    assert saved.states(engine) == before
    saved.train(engine)


def comparable(states: dict[str, Any]) -> dict[str, Any]:
    """States without the random number generator, which DeepSpeed does not save."""
    return {**states, "other": states["other"][:2]}
