"""The models of a Scenario: a GPT and a ViT in the field's usual sizes, and an odd one that holds every peculiarity."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from zerobench.data import dyadic_weights
from zerobench.models import gpt, vit
from zerobench.models.gpt import GptModel
from zerobench.models.odd import OddModel
from zerobench.models.vit import VitModel
from zerobench.scenario import Gpt, Odd, Scenario, Vit

__all__ = ["SIZES", "GptModel", "OddModel", "VitModel", "build", "name_of"]

#: The models that have a name.
SIZES: dict[str, Gpt | Vit] = {**gpt.SIZES, **vit.SIZES}


def build(scenario: Scenario) -> nn.Module:
    """The Scenario's model: fp32, on the CPU, in training mode, with the same bits in every process.

    ``model(**batch)`` is the mean loss of a leaf, a 0-dimensional tensor. The caller's random state is left as it was.

    Raises:
        UsageError: sizes that make no model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(scenario.seed)
        model = _of(scenario.model)
    if scenario.data == "dyadic":
        dyadic_weights(model, scenario.seed)
    return model


def _of(spec: Gpt | Vit | Odd) -> nn.Module:
    if isinstance(spec, Gpt):
        return GptModel(spec)
    return VitModel(spec) if isinstance(spec, Vit) else OddModel(spec)


def name_of(spec: Gpt | Vit | Odd) -> str | None:
    """The name of a size in :data:`SIZES`, with whatever recomputation and dropout; None where it has none."""
    plain = dataclasses.replace(spec, recompute="none", dropout=0.0)
    return next((name for name, size in SIZES.items() if size == plain), None)
