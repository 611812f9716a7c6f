"""A part of a stage-3 model that the caller runs by itself, as generation runs an encoder, with a tied weight."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import zerobench
from zerobench.ranks import Pool

pytestmark = pytest.mark.usefixtures("reference")

_ROW = torch.ones(6)


class _Half(nn.Module):
    """Two blocks behind an embedding of its own, whose weight it shares with the other half."""

    def __init__(self, shared: nn.Embedding) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.embed.weight = shared.weight
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        for block in self.blocks:
            y = y + block(y)
        return functional.layer_norm(y, (6,), self.norm.weight, self.norm.bias)  # a weight by its attribute


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Embedding(7, 6)
        self.encoder, self.decoder = _Half(self.shared), _Half(self.shared)
        self.tied = self.decoder.blocks[0].get_submodule("0")  # a part of one block with the weight of another
        self.tied.register_parameter("weight", self.encoder.blocks[0].get_parameter("0.weight"))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x) + self.decoder(x)  # type: ignore[no-any-return]


def _calls(model: _Model, x: Tensor) -> list[Tensor]:
    """Encoder, tied parts and the whole model."""
    return [model.encoder(x), model.decoder.embed(x), model.tied(_ROW), model(x)]


def _alone(group: dist.ProcessGroup) -> list[Tensor]:
    """The calls past the engine; a step through the engine in between."""
    model, x = _Model(), torch.arange(6).view(2, 3)
    zero = {"stage": 3, "chunk_size": 32, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
    sgd = {"type": "SGD", "params": {"lr": 0.5}}
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": sgd, "zero_optimization": zero}
    engine, *_ = zerobench.initialize(model, config, process_group=group)
    seen = []
    for _ in range(2):
        with torch.no_grad():
            seen += _calls(model, x)
        engine.backward(model(x).square().sum())  # its forward is not the engine's
        engine.step()
    engine.destroy()
    return seen


def test_parts_alone(pool: Pool) -> None:
    """Each call gives the plain model's bits, before and after a step."""
    model, x = _Model(), torch.arange(6).view(2, 3)
    expected = []
    for _ in range(2):
        with torch.no_grad():
            expected += _calls(model, x)
        model(x).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.5 * parameter.grad)  # exact, like the mean of two equal gradients
                parameter.grad = None
    for seen in pool.run(_alone, world=2):
        assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
