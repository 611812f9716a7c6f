"""Forward-mode transforms of torch.func around an engine train at every stage."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")


def _trained(group: dist.ProcessGroup, stage: int) -> Tensor:
    """Train on outputs and their derivatives by the inputs, as physics-informed and score models do."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3))
    engine, *_ = loops.deepspeed().initialize(model=net, training_data=loops.data(), config=loops.config(stage))
    inputs = torch.linspace(-1, 1, 10).view(2, 5)
    for _ in range(2):
        outputs, slopes, *_ = torch.func.jvp(engine, (inputs,), (torch.ones_like(inputs),))
        jacobian = torch.func.jacfwd(lambda given: engine(given).sum(0))(inputs)
        engine.backward(outputs.square().mean() + slopes.square().mean() + jacobian.square().mean())
        engine.step()
    after = loops.trained(engine, net, 0)
    engine.destroy()
    return after


def test_every_stage(pool: Pool) -> None:
    """At stage 3 the gather within the transform was an error of torch: it writes to the memory of parameters."""
    ranks = pool.run(loops.at_every_stage, _trained, world=4)
    for stages in ranks:
        assert all(torch.equal(after, ranks[0][0]) for after in stages)
