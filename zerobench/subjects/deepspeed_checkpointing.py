"""DeepSpeed's own function that recomputes activations, in place of torch's."""

from __future__ import annotations

from typing import Any

from torch import nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subjects import client_settings

_PAGE = "https://deepspeed.readthedocs.io/en/latest/activation-checkpointing.html"

#: Each block recomputes itself by it.
CHECKPOINTED = "deepspeed.checkpointing.checkpoint"


def unsupported(scenario: Scenario) -> str | None:
    """The reason against the setting, or None."""
    if CHECKPOINTED not in scenario.settings:
        return None
    if scenario.model.recompute != "reentrant":
        return f"{CHECKPOINTED} is for a model that recomputes with reentry: {_PAGE}"
    if client_settings.WITHIN in scenario.settings:
        return f"{client_settings.WITHIN} recomputes by torch's function"
    if isinstance(scenario.model, Odd) and scenario.model.structured:
        return f"{CHECKPOINTED} takes a function that returns a tensor, or several: {_PAGE}"
    return None


def change_blocks(deepspeed: Any, model: nn.Module, scenario: Scenario) -> None:
    """Let the blocks recompute themselves by DeepSpeed's function, and not the model, if the setting says so."""
    if CHECKPOINTED in scenario.settings:
        client_settings.recompute_within(model, deepspeed.checkpointing.checkpoint)
