"""A call of every rank that one rank makes alone is an error on all ranks, which names them; no rank hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zerobench.suites.support.alone import outside
from zerobench.suites.support.checkout import ROOT

_SCRIPT = """
import deepspeed, torch
from torch import nn

zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam"}, "zero_optimization": zero}
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
engine, *_ = deepspeed.initialize(model=net, config=config)
if engine.global_rank == 0:
    with CALL
for _ in range(2):
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
"""


_GATHER = "deepspeed.zero.GatheredParameters(list(net.parameters())): pass"
_EVALUATE = "torch.no_grad(): engine(torch.ones(2, 4))"
_MESSAGES = {
    _GATHER: "rank 0 reads parameters while rank 1 trains, but every rank must make both calls",
    _EVALUATE: "rank 0 evaluates while rank 1 is in a backward, but at stage 3 every rank must make both calls",
}


@pytest.mark.slow
@pytest.mark.parametrize("call", _MESSAGES)
def test_a_call_of_rank_0_alone(call: str, tmp_path: Path) -> None:
    """Rank 0 gathers, or evaluates, as of a longer validation set, while rank 1 trains."""
    (tmp_path / "train.py").write_text(_SCRIPT.replace("CALL", call))
    env = {**outside(), "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "zerobench", "launch", "--num_gpus", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0
    assert _MESSAGES[call] in done.stderr
