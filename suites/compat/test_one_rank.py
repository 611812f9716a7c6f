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
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        pass
for _ in range(2):
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
"""


@pytest.mark.slow
def test_gathered_on_rank_0_alone(tmp_path: Path) -> None:
    """Rank 0 gathers while rank 1 trains."""
    (tmp_path / "train.py").write_text(_SCRIPT)
    env = {**outside(), "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "zerobench", "launch", "--num_gpus", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0
    assert "rank 0 reads parameters while rank 1 trains, but every rank must make both calls" in done.stderr
