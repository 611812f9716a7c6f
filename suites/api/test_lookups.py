"""Embeddings with ``max_norm``: the change of a lookup holds for this lookup alone, at every stage."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import zerobench
from zerobench.suites.support.trials import TIME_LIMIT, Trials

_STEPS, _ROWS = 3, 7


class _Words(nn.Module):
    """Two tables and a head that has the first one's weight, so that it matters when the weight has its values back."""

    def __init__(self, limited: bool, recompute: bool) -> None:
        super().__init__()
        norm = 0.5 if limited else None
        self.words = nn.Embedding(_ROWS, 4, max_norm=norm)
        self.bags = nn.EmbeddingBag(_ROWS, 4, max_norm=norm, mode="mean")
        self.limited, self.recompute = limited, recompute

    def forward(self, x: Tensor) -> Tensor:
        found = checkpoint(self.look_up, x, use_reentrant=False) if self.recompute else self.look_up(x)
        return functional.linear(found, self.words.weight).square().mean()

    def look_up(self, x: Tensor) -> Tensor:
        if self.limited:
            return self.words(x).mean(1) + self.bags(x)  # type: ignore[no-any-return]
        return _limited(self.words, x).mean(1) + _limited(self.bags, x).mean(1)


def _limited(table: nn.Embedding | nn.EmbeddingBag, x: Tensor) -> Tensor:
    """The lookup that max_norm makes, from a copy: its gradient is that of the rows."""
    weight = table.weight
    copied = weight.detach().clone()
    functional.embedding(x, copied, max_norm=0.5)
    return functional.embedding(x, weight + (copied - weight.detach()))


@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
def test_every_stage(reference: Trials, precision: dict[str, Any], recompute: bool) -> None:
    """All stages and ranks have the same weights, also in the model, and no lookup has changed them."""
    runs = [
        reference.pool.run(_train, stage, precision, recompute, world=2, timeout=TIME_LIMIT) for stage in (0, 1, 2, 3)
    ]
    expected = runs[0][0]
    assert any(not torch.equal(a, b) for a, b in zip(expected[:2], expected[2:4], strict=True))
    for run in runs:
        for found in run:
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_lookup(reference: Trials) -> None:
    """It trains as a lookup in a copy of the weight whose rows are scaled."""
    limited, copied = (
        reference.pool.run(_train, 0, {}, False, which, world=2, timeout=TIME_LIMIT) for which in (True, False)
    )
    for got, wanted in zip(limited[0], copied[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def _train(
    group: dist.ProcessGroup, stage: int, precision: dict[str, Any], recompute: bool, limited: bool = True
) -> list[Tensor]:
    """One rank's part: the weights before and after training on rows that differ by rank; those of the model, too."""
    torch.manual_seed(0)
    model = _Words(limited, recompute)
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **precision,
    }
    before = [parameter.detach().clone() for parameter in model.parameters()]
    engine, *_ = zerobench.initialize(model, config, process_group=group)
    torch.manual_seed(1 + dist.get_rank(group))
    for _ in range(_STEPS):
        engine.backward(engine(torch.randint(_ROWS, (3, 2))))
        engine.step()
        with torch.no_grad():
            engine(torch.randint(_ROWS, (3, 2)))
    with zerobench.GatheredParameters(model):
        seen = [parameter.detach().float().clone() for parameter in model.parameters()]
    masters = [zerobench.safe_get_full_fp32_param(parameter) for parameter in model.parameters()]
    engine.destroy()
    return [*before, *(master for master in masters if master is not None), *seen]


def test_a_copy_of_the_model() -> None:
    """A copy that is made while the engine lives looks up as the model does."""
    model = _Words(True, False)
    engine, *_ = zerobench.initialize(
        model, {"train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    )
    copied = copy.deepcopy(model)
    before, x = copied.words.weight.detach().clone(), torch.arange(_ROWS)[None]
    assert torch.equal(copied(x), engine(x))
    assert torch.equal(copied.words.weight, before)
    engine.destroy()
    model(x)
    assert not torch.equal(model.words.weight, before)
