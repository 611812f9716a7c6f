"""Scripts of strangers under the installed DeepSpeed: they see the same counts, names, lines and numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zerobench.suites.compat import oracle
from zerobench.suites.compat.strangers import PLAIN, launched

pytestmark = [pytest.mark.slow, oracle.NEEDS_DEEPSPEED]

#: Of a number, relative to it or to 1; the two engines add gradients in other orders.
_TOLERANCE = 3e-6
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("name", ["callbacks", "boundaries", "handlers", "layer_decay"])
def test_what_a_script_sees(name: str, stage: int, tmp_path: Path) -> None:
    """On two ranks each line is that of DeepSpeed, with its numbers within 3e-6."""
    ours, theirs = (_seen(launcher, name, stage, tmp_path / launcher) for launcher in ("torchrun", "deepspeed"))
    assert len(ours) >= 10
    assert [_NUMBER.sub("x", line) for line in ours] == [_NUMBER.sub("x", line) for line in theirs]
    for line, expected in zip(ours, theirs, strict=True):
        assert _numbers(line) == pytest.approx(_numbers(expected), rel=_TOLERANCE, abs=_TOLERANCE)


def _seen(launcher: str, name: str, stage: int, folder: Path) -> list[str]:
    printed = launched(launcher, name, PLAIN[name], stage, folder)
    return [line for line in printed.splitlines() if line.startswith("seen")]


def _numbers(line: str) -> list[float]:
    return [float(each) for each in _NUMBER.findall(line)]
