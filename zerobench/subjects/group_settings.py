"""The settings of parameter groups that train nothing, and that change no value; a client's optimizer has them beside
those of its Scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subjects import plain_settings

#: The first group has no parameter, as that of the biases has none if a client trains the weights of LoRA alone:
#: https://github.com/OpenRLHF/OpenRLHF/issues/1225
EMPTY = "a parameter group without parameters"
#: The last group has the frozen parameters of the model, as of a client that gives the optimizer all parameters, each
#: part of the model in a group with a rate of its own.
FROZEN = "a parameter group of frozen parameters"
GROUPS = EMPTY, FROZEN


def unsupported(scenario: Scenario) -> str | None:
    """The reason against such a group, or None."""
    given = set(GROUPS).intersection(scenario.settings)
    if FROZEN in given and not (isinstance(scenario.model, Odd) and scenario.model.frozen):
        return f"{FROZEN} is of a model that has some"
    if FROZEN in given and scenario.frozen_in != "all":
        return f"{FROZEN} is of parameters that no engine trains"
    if given and (additions := set(plain_settings.ADDITIONS).intersection(scenario.settings)):
        return f"{min(additions)} is of the groups that train"
    return None


def with_others(grouped: list[dict[str, Any]], model: nn.Module, scenario: Scenario) -> list[dict[str, Any]]:
    """The parameter groups that train, and those beside them."""
    empty: list[dict[str, Any]] = [{"params": []}] if EMPTY in scenario.settings else []
    frozen = [p for p in model.parameters() if not p.requires_grad]
    return [*empty, *grouped, *([{"params": frozen}] if FROZEN in scenario.settings else [])]


def trained(groups: Sequence[dict[str, Any]], scenario: Scenario) -> Sequence[dict[str, Any]]:
    """The groups of an optimizer that train, as its client counts them."""
    return groups[int(EMPTY in scenario.settings) : len(groups) - int(FROZEN in scenario.settings)]
