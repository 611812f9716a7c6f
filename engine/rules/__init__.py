"""The engine's rules, found by a configuration's type or a client's class; there is no default rule."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import torch

from zerobench.engine.errors import ConfigError
from zerobench.engine.rules import elementwise
from zerobench.engine.rules.adadelta import Adadelta
from zerobench.engine.rules.adagrad import Adagrad
from zerobench.engine.rules.adam import Adam
from zerobench.engine.rules.adamax import Adamax
from zerobench.engine.rules.lion import Lion
from zerobench.engine.rules.nadam import Nadam
from zerobench.engine.rules.radam import Radam
from zerobench.engine.rules.rmsprop import Rmsprop
from zerobench.engine.rules.rule import Rule
from zerobench.engine.rules.sgd import Sgd

RULES: tuple[Rule[Any], ...] = (Adam(), Sgd(), Lion(), Adagrad(), Rmsprop(), Radam(), Nadam(), Adamax(), Adadelta())

_BY_TYPE = {name.lower(): rule for rule in RULES for name in rule.types}
_TYPES = {name.lower(): name for rule in RULES for name in rule.types}
_BY_CLIENT = {client: rule for rule in RULES for client in rule.clients}


def find(type_: object) -> Rule[Any] | None:
    """The rule of a configuration's ``optimizer.type``, in any case; None if there is none."""
    return _BY_TYPE.get(str(type_).lower())


def spelled(type_: str) -> str:
    """The type in the spelling of ``Rule.types``.

    Raises:
        ConfigError: no rule has this type.
    """
    if type_.lower() not in _TYPES:
        raise ConfigError(f"no such optimizer{_nearest(type_, _TYPES.values())}")
    return _TYPES[type_.lower()]


def of_type(type_: str) -> Rule[Any]:
    """The rule of a configuration's ``optimizer.type``.

    Raises:
        ConfigError: no rule has this type.
    """
    return _BY_TYPE[spelled(type_).lower()]


def of_client(client: torch.optim.Optimizer) -> Rule[Any]:
    """The rule of a client's optimizer: by its exact class if all options are ones that the rule has, else its own.

    Raises:
        ConfigError: the engine cannot step this optimizer.
    """
    rule = _BY_CLIENT.get(type(client))
    if rule is not None and not any(group.get(option) for group in client.param_groups for option in rule.lacks):
        return rule
    return elementwise.rule_of(client)


def _nearest(given: str, known: Iterable[str]) -> str:
    """The last part of a message about an unknown name."""
    names = {name.rpartition(".")[2].lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), names, n=1)
    hint = f"; did you mean {names[near[0]]!r}?" if near else ""
    return f"{hint} (known: {', '.join(names.values())})"
