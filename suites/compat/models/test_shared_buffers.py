"""A buffer that several modules have, such as VeRA's projections or a normalisation that is used twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")


def _model() -> nn.Sequential:
    shared, table = nn.BatchNorm1d(4), torch.ones(4)
    net = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared)
    net[0].register_buffer("table", table, persistent=False)
    net[2].register_buffer("table", table)
    return net


def _exported(group: dist.ProcessGroup, stage: int, folder: str) -> tuple[list[str], ...]:
    """The names of the module's state dict, of rank 0's whole one, and of the checkpoint's weights."""
    ds, net = loops.deepspeed(), _model()
    engine, *_ = ds.initialize(model=net, config=loops.config(stage))
    engine.save_checkpoint(folder, tag=f"stage{stage}")
    engine.load_checkpoint(folder, tag=f"stage{stage}")
    state = engine._zero3_consolidated_16bit_state_dict()
    read = ds.utils.zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder, f"stage{stage}")
    own = list(net.state_dict())
    engine.destroy()
    return own, list(state or own), sorted(read)


def test_all_names_are_exported(pool: Pool, tmp_path: Path) -> None:
    """The names after the first were in no export at any stage, so that Trainer's file at stage 3 lacked them."""
    for stages in pool.run(loops.at_every_stage, _exported, str(tmp_path), world=4):
        for own, whole, read in stages:
            assert whole == own
            assert read == sorted(own)
