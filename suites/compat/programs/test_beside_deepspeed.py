"""Scripts of strangers under the installed DeepSpeed: they see the same counts, names, lines and numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.suites.compat import oracle
from zerobench.suites.compat.programs.jobs import offline
from zerobench.suites.compat.programs.strangers import PLAIN, launched
from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

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


_LOADS = """
import deepspeed, sys, torch, transformers
shape = {"vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).save_pretrained("saved")
transformers.GPT2LMHeadModel.from_pretrained("saved")
print("seen", hasattr(torch.Tensor, "ds_status"), any(each.startswith("zerobench.engine") for each in sys.modules))
"""


@pytest.mark.skipif(offline(), reason="needs the extra hf: pip install 'zerobench[hf]'")
def test_nothing_of_zerobench(tmp_path: Path) -> None:
    """DeepSpeed has its own tensors: if they had the attributes of ours, it would not broadcast the first weights."""
    (tmp_path / "loads.py").write_text(_LOADS, encoding="utf-8")
    command = [sys.executable, "-m", "zerobench.suites.compat.programs.peer", "loads.py"]
    env = {**outside(), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert "seen False False" in done.stdout.splitlines()


def _seen(launcher: str, name: str, stage: int, folder: Path) -> list[str]:
    printed = launched(launcher, name, PLAIN[name], stage, folder)
    return [line for line in printed.splitlines() if line.startswith("seen")]


def _numbers(line: str) -> list[float]:
    return [float(each) for each in _NUMBER.findall(line)]
