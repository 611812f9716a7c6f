"""The harness's facts on each optimizer that a Scenario can name: the torch class, its arguments, its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from zerobench.oracles.lion import Lion
from zerobench.scenario import Optimizer


def _always(*names: str) -> Callable[[Optimizer], tuple[str, ...]]:
    return lambda spec: names


@dataclass(frozen=True)
class Rule:
    """One optimizer of a Scenario."""

    make: type[torch.optim.Optimizer]
    arguments: tuple[str, ...]  # those of the Scenario's fields that it reads, besides lr and weight_decay
    states: Callable[[Optimizer], tuple[str, ...]]  # names of the states that have their parameter's shape
    counts_steps: bool = False  # torch keeps an fp32 step count for each parameter
    eager: bool = False  # the states exist before the first step
    flags: bool = True  # takes torch's foreach and fused
    fuses: bool = False  # torch's fused form runs on CUDA


RULES: dict[str, Rule] = {
    "adam": Rule(torch.optim.Adam, ("betas", "eps"), _always("exp_avg", "exp_avg_sq"), counts_steps=True, fuses=True),
    "adamw": Rule(torch.optim.AdamW, ("betas", "eps"), _always("exp_avg", "exp_avg_sq"), counts_steps=True, fuses=True),
    "sgd": Rule(torch.optim.SGD, ("momentum",), lambda spec: ("momentum_buffer",) if spec.momentum else (), fuses=True),
    "lion": Rule(Lion, ("betas",), _always("exp_avg"), flags=False),
    "adagrad": Rule(torch.optim.Adagrad, ("eps", "lr_decay"), _always("sum"), counts_steps=True, eager=True),
}


def hyperparameters(spec: Optimizer) -> dict[str, Any]:
    """The keyword arguments with which a Scenario's optimizer is made."""
    names = ("lr", "weight_decay", *RULES[spec.name].arguments)
    return {name: getattr(spec, name) for name in names}


def state_keys(spec: Optimizer) -> tuple[str, ...]:
    """torch's names of the state tensors that have their parameter's shape."""
    return RULES[spec.name].states(spec)
