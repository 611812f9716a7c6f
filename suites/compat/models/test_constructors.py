"""Constructors under zero.Init that use the parameters of their parts, which are sharded by then."""

from __future__ import annotations

import copy
import os
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zerobench.ranks import Pool
from zerobench.suites.compat import loops

pytestmark = pytest.mark.usefixtures("reference")

_WORLD = 4


class _Base(nn.Module):
    """Edits in place, and edits of ``data``."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(8))
        self.first.bias.data.fill_(0.25)


class _Model(_Base):
    """Parts that torch initialises in the constructors around them, parametrizations, copies, readings and views."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 8, 0.0, batch_first=True)
        self.normalized: Any = parametrizations.weight_norm(nn.Linear(8, 8))
        self.spectral: Any = parametrizations.spectral_norm(nn.Linear(8, 8))
        blocks = [nn.Linear(8, 8) for _ in range(2)]
        for number, block in enumerate(blocks):
            block.weight.data.div_(number + 2)
            nn.init.trunc_normal_(block.bias)
        self.blocks, self.copied = nn.ModuleList(blocks), copy.deepcopy(blocks[0])
        self.copied.weight.data = self.copied.weight.data * 2
        self.scale = nn.Parameter(self.copied.weight.detach().norm())
        self.read = [each.norm().item() for each in self.parameters()]
        self.view = block.weight.data

    def forward(self, x: Tensor) -> Tensor:
        y = self.spectral(self.normalized(self.transformer(self.first(x), x)))
        for block in (*self.blocks, self.copied):
            y = block(y)
        return y * self.scale  # type: ignore[no-any-return]


def _constructed(group: dist.ProcessGroup, stage: int) -> tuple[list[float], list[Tensor]]:
    """What the constructor has read, the view that it keeps, the first values, and the masters after a step."""
    ds = loops.deepspeed()
    torch.manual_seed(dist.get_rank() if stage == 3 else 0)  # all ranks take the values of rank 0
    with ds.zero.Init(enabled=stage == 3):
        net = _Model()
    with ds.zero.GatheredParameters(net.parameters()):
        values = [net.view.clone(), *(each.detach().clone() for each in net.parameters())]
    engine, *_ = ds.initialize(model=net, config=loops.config(stage, train_batch_size=4, gradient_accumulation_steps=1))
    engine.backward(engine(torch.ones(1, 3, 8)).square().mean())
    engine.step()
    after = loops.masters(net)
    engine.destroy()
    return net.read, [*values, after]


def test_parts_are_initialised(pool: Pool) -> None:
    """A model has the bits of one that is constructed without zero.Init, and trains to the same."""
    (plain, plain_values), *_ = pool.run(_constructed, 0, world=_WORLD)
    for read, values in pool.run(_constructed, 3, world=_WORLD):
        assert read == plain
        assert all(torch.equal(one, other) for one, other in zip(values, plain_values, strict=True))


class _Failing(nn.Module):
    """Raises on one rank while a view keeps a part whole."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)
        self.view = self.part.weight.data
        if fails:
            raise ValueError("wrong")


def _failing(group: dist.ProcessGroup) -> list[Any]:
    ds = loops.deepspeed()
    with pytest.raises(ValueError, match="wrong"), ds.zero.Init():
        _Failing(fails=True)
    with pytest.raises(RuntimeError, match=r"'Linear\.weight' is sharded"), ds.zero.Init():
        _Failing(fails=False).part.weight.norm()
    with ds.zero.Init():
        return [hasattr(each, "ds_shape") for each in _Failing(fails=False).parameters()]


def test_a_constructor_that_raises(pool: Pool) -> None:
    """Its error reaches the caller, and after the constructors a use is an error, as before."""
    assert pool.run(_failing, world=_WORLD) == [[True, True]] * _WORLD


class _Alone(nn.Module):
    """Rank 0 alone draws a part's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(3, 3)
        if dist.get_rank() == 0:
            nn.init.zeros_(self.part.weight)


def _drawing_alone(group: dist.ProcessGroup) -> str:
    ds, text = loops.deepspeed(), ""
    with mock.patch.dict(os.environ, {"ZEROBENCH_ZERO_INIT_TIMEOUT": "0.5"}), ds.zero.Init():
        try:
            _Alone()
        except RuntimeError as error:
            text = str(error)
    dist.barrier()
    return text


def test_a_use_on_one_rank_ends(pool: Pool) -> None:
    """It is an error that names the ranks that do not come, because each keeps a shard."""
    alone, *others = pool.run(_drawing_alone, world=_WORLD)
    assert "rank 1, 2, 3 did not within 0.5 s" in alone
    assert set(others) == {""}
