"""A second model beside that of FSDP2, with the same streams, as the chunks of a pipeline on one rank have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import share_comm_ctx

from zerobench.scenario import Scenario

#: The second model trains before each micro-step, or between its forward and its backward, as in a pipeline.
SHARED, BETWEEN = "share_comm_ctx", "share_comm_ctx, and a backward of another model after the forward"
SETTINGS = SHARED, BETWEEN


class Chunk:
    """Two layers, each a group of parameters, whose values nobody reads."""

    def __init__(self, model: nn.Module, unit: Callable[..., Any], scenario: Scenario) -> None:
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.Sequential(*(nn.Linear(2, 2, device=scenario.device) for _ in range(2)))
        for layer in self.layers:
            unit(layer)
        unit(self.layers)
        share_comm_ctx([model, self.layers])  # type: ignore[list-item]
        self.given = torch.ones(1, 2, device=scenario.device)

    def train(self) -> None:
        """A forward and a backward."""
        self.layers(self.given).sum().backward()
        self.layers.zero_grad()


def chunk(model: nn.Module, unit: Callable[..., Any], scenario: Scenario) -> Chunk | None:
    """The second model of a Scenario's settings; None without them. A collective."""
    return Chunk(model, unit, scenario) if set(SETTINGS).intersection(scenario.settings) else None


def unsupported(scenario: Scenario) -> str | None:
    """The reason against a setting, or None."""
    return "a model shares its streams in one way" if set(SETTINGS).issubset(scenario.settings) else None
