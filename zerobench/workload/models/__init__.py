"""The models of a Scenario: a GPT and a ViT in the field's usual sizes, and an odd one that has every peculiarity."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from zerobench.model_specs import Gpt, Odd, Vit
from zerobench.scenario import Scenario
from zerobench.workload.data import dyadic_weights
from zerobench.workload.models.gpt import GptModel
from zerobench.workload.models.last import LAST, drawn_once
from zerobench.workload.models.odd import OddModel
from zerobench.workload.models.vit import VitModel

__all__ = ["GptModel", "OddModel", "VitModel", "build", "drawn_once", "shapes", "undrawn"]


def build(scenario: Scenario) -> nn.Module:
    """The Scenario's model: fp32, on the CPU, in training mode, with the same bits in every process.

    ``model(**batch)`` is the mean loss of a leaf, a 0-dimensional tensor. The caller's random state is unchanged.

    Raises:
        UsageError: if the sizes are invalid.
    """
    return LAST.copy(scenario, _drawn) if LAST.kept else _drawn(scenario)


def _drawn(scenario: Scenario) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(scenario.seed)
        model = _of(scenario.model)
    if scenario.data == "dyadic":
        dyadic_weights(model, scenario.seed)
    return model


def shapes(scenario: Scenario) -> nn.Module:
    """The Scenario's model without its values: on torch's meta device.

    No weight is drawn: on the meta device drawing would only load torch's compiler, which takes a second.
    """
    with torch.device("meta"), undrawn():
        return build(scenario)


def undrawn() -> AbstractContextManager[object]:
    """Inside, weights are constant: drawing billions of them takes minutes, and memory does not depend on them."""
    return _Constant()


class _Constant(TorchFunctionMode):
    """A weight that would be drawn is filled."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return given["tensor"].detach().fill_(0.01) if func in _DRAWN else func(*args, **given)


_DRAWN = {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_}


def _of(spec: Gpt | Vit | Odd) -> nn.Module:
    if isinstance(spec, Gpt):
        return GptModel(spec)
    return VitModel(spec) if isinstance(spec, Vit) else OddModel(spec)
