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


def _refused(group: dist.ProcessGroup, stage: int) -> tuple[list[str], Tensor]:
    """What ``torch.func.grad`` and ``vjp`` within GatheredParameters say, and the gradient where they work."""
    ds, net = loops.deepspeed(), loops.model()
    engine, *_ = ds.initialize(model=net, config=loops.config(stage))
    inputs = torch.linspace(-1, 1, 10).view(2, 5)
    notes: list[str] = []
    weight = net[0].weight
    for transform in (
        lambda: torch.func.grad(lambda given: net(given).sum())(inputs),
        lambda: torch.func.vjp(net, inputs),
        lambda: torch.func.grad(lambda given: given.square().sum())(inputs),  # of no parameter
    ):
        try:
            with ds.zero.GatheredParameters(list(net.parameters())):
                transform()
        except RuntimeError as error:
            notes += getattr(error, "__notes__", [str(error)])
    with torch.no_grad(), ds.zero.GatheredParameters(list(net.parameters())):
        slope = torch.func.grad(lambda given: (given @ weight.T).square().sum())(inputs)
    engine.destroy()
    return notes, slope


def test_reverse_mode_within_gathered_parameters(pool: Pool) -> None:
    """At stage 3 an error says why and what to do; functions that call no layer run under ``torch.no_grad()``."""
    for stages in pool.run(loops.at_every_stage, _refused, world=4):
        *whole, (notes, slope) = stages
        assert all(not each and torch.equal(other, slope) for each, other in whole)
        assert len(notes) == 3
        for note in notes:
            assert "GatheredParameters with gradients enabled, cannot use grad and vjp of torch.func" in note
            assert "or stage 2" in note
