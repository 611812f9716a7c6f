"""Edits of parameters in a forward, as of the key encoder of MoCo, and of those that GatheredParameters did not get."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


def _new_data(key: Tensor, query: Tensor) -> None:
    key.data = key.data * 0.9 + query.data * 0.1


def _by_data(key: Tensor, query: Tensor) -> None:
    key.data.mul_(0.9).add_(query.data, alpha=0.1)


def _in_place(key: Tensor, query: Tensor) -> None:
    key.lerp_(query, 0.1)


_EDITS: dict[str, Callable[[Tensor, Tensor], None]] = {"new data": _new_data, "data": _by_data, "in place": _in_place}


class _Momentum(nn.Module):
    """A query encoder that trains, a frozen key encoder that follows it, and a weight that is normalised each time."""

    def __init__(self, edit: str) -> None:
        super().__init__()
        self.query, self.edit = loops.model(), _EDITS[edit]
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.head = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
                self.edit(key, query)
            self.head.div_(self.head.norm(dim=1, keepdim=True))
            keys = self.key(x)
        return torch.mm(self.query(x) - keys, self.head.t())


def _followed(group: dist.ProcessGroup, stage: int, edit: str, keys: dict[str, Any], live: int) -> list[Tensor]:
    """The losses of three steps of two micro-steps, and the weights and masters afterwards."""
    net = _Momentum(edit)
    given = loops.config(stage)
    del given["scheduler"]
    zero = {**given["zero_optimization"], **(keys.get("zero_optimization", {}) if stage else {})}
    if stage == 3:
        zero["stage3_max_live_parameters"] = live
    engine, *_ = loops.deepspeed().initialize(model=net, config={**given, **keys, "zero_optimization": zero})
    losses, draw = [], torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        loss = engine(torch.randn(2, 5, generator=draw).to(net.head.dtype)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    with loops.deepspeed().zero.GatheredParameters(list(net.parameters())):
        weights = [each.detach().float().flatten() for each in net.parameters()]
    masters = [loops.masters(part) for part in (net.query, _holding(net.head))]
    engine.destroy()
    return [torch.stack(losses), *weights, *masters]


def _holding(parameter: nn.Parameter) -> nn.Module:
    return nn.ParameterList([parameter])


_OFFLOAD = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize(
    ("edit", "keys", "live"),
    [
        ("new data", {}, 0),
        ("data", _OFFLOAD, 10**9),
        ("in place", {"bf16": {"enabled": True}}, 0),
        ("data", {"bf16": {"enabled": True}}, 10**9),
    ],
    ids=["new data", "data-offload", "in place-bf16", "data-bf16"],
)
def test_edits_in_forwards(pool: Pool, edit: str, keys: dict[str, Any], live: int) -> None:
    """They persist at every stage, with the same bits, whether the units stay whole afterwards or not."""
    for stages in pool.run(loops.at_every_stage, _followed, edit, keys, live, world=_WORLD):
        for outcome in stages:
            assert all(map(torch.equal, outcome, stages[0]))


def _beside(group: dist.ProcessGroup) -> tuple[str, Tensor]:
    """The error of an edit of a bias, if its weight alone was chosen; and the bias after an edit in a context of it."""
    net = loops.model()
    engine, *_ = loops.deepspeed().initialize(model=net, config=loops.config(3))
    gathered, layer = loops.deepspeed().zero.GatheredParameters, cast(nn.Linear, net[0])
    expected = engine(torch.ones(2, 5)).detach()
    with gathered([layer.weight]), torch.no_grad():
        with pytest.raises(RuntimeError) as caught:
            layer.bias.fill_(2.0)
        with gathered([layer.bias]):
            layer.bias.add_(1.0)
    with gathered([layer.weight]):
        assert not torch.equal(engine(torch.ones(2, 5)).detach(), expected)
    with gathered(net):
        after = layer.bias.detach().clone()
    engine.destroy()
    return str(caught.value), after


def test_beside_the_chosen(pool: Pool) -> None:
    """A parameter that GatheredParameters did not get can be neither read nor edited: an edit was lost in silence."""
    expected = cast(nn.Linear, loops.model()[0]).bias.detach() + 1
    for error, after in pool.run(_beside, world=_WORLD):
        assert "parameter '0.bias' is sharded and not whole here" in error
        assert torch.equal(after, expected)


def _edited_too_late(group: dist.ProcessGroup, stage: int) -> str:
    """The error of a backward that needs a weight from before an edit."""
    net = loops.model()
    layer = cast(nn.Linear, net[2])

    def halve(*_: object) -> None:
        with torch.no_grad():
            layer.weight.mul_(0.5)

    layer.register_forward_hook(halve)
    engine, *_ = loops.deepspeed().initialize(model=net, config=loops.config(stage))
    with pytest.raises(RuntimeError) as caught:
        engine.backward(engine(torch.ones(2, 5)).sum())
    engine.destroy()
    return str(caught.value)


def test_an_edit_after_the_use(pool: Pool) -> None:
    """It is autograd's error at every stage: stage 3 made gradients with the edited weight, in silence."""
    for errors in pool.run(loops.at_every_stage, _edited_too_late, world=_WORLD):
        assert all("modified by an inplace operation" in error for error in errors)
        assert "parameter '2.weight'" in errors[3]
