"""Evaluation of torch's own layers has the same bits at every stage."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")


def _evaluated(group: dist.ProcessGroup, stage: int) -> Tensor:
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    engine, *_ = loops.deepspeed().initialize(model=net, config=loops.config(stage))
    engine.eval()
    with torch.no_grad():
        found = engine(torch.randn(2, 8, 16), src_mask=nn.Transformer.generate_square_subsequent_mask(8))
    engine.destroy()
    return torch.as_tensor(found)


def test_an_encoder_with_a_mask(pool: Pool) -> None:
    """torch has a fast path for it, which it does not take at stage 3; other roundings were the result."""
    for stages in pool.run(loops.at_every_stage, _evaluated, world=4):
        assert all(torch.equal(each, stages[0]) for each in stages)
