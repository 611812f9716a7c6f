"""A Scenario's optimizer in torch; the canonical trainer and torch's own subjects build theirs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim.lr_scheduler import LambdaLR

from zerobench.dispatch import DispatchMode
from zerobench.oracles.rules import RULES, hyperparameters, state_keys
from zerobench.scenario import Optimizer, Scenario
from zerobench.subject import State
from zerobench.workload.groups import members, specs


def build_optimizer(spec: Optimizer, named: Mapping[str, nn.Parameter], **form: Any) -> torch.optim.Optimizer:
    """The optimizer of these parameters, in the form that torch's arguments ``foreach`` and ``fused`` choose."""
    return make_optimizer(spec, groups(spec, named), **form)


def make_optimizer(spec: Optimizer, grouped: list[dict[str, Any]], **form: Any) -> torch.optim.Optimizer:
    """The same of parameter groups: the shards of a parameter may not have its dimensions, which decide its group."""
    rule = RULES[spec.name]
    return rule.make(grouped, **hyperparameters(spec), **(form if rule.flags else {}))


def scheduler_of(scenario: Scenario, unit: int = 1) -> Callable[[torch.optim.Optimizer], LambdaLR] | None:
    """The function that makes the scheduler of an engine's optimizer; None if the client sets the learning rates.

    The engine steps the scheduler ``unit`` times for each update.
    """
    if not scenario.engine_schedules:
        return None

    def make(optimizer: torch.optim.Optimizer) -> LambdaLR:
        numbers = range(len(optimizer.param_groups))
        return LambdaLR(optimizer, [partial(_rate_factor, scenario, unit, group) for group in numbers])

    return make


def _rate_factor(scenario: Scenario, unit: int, group: int, count: int) -> float:
    return scenario.factors(count // unit, group)["lr"]


class ExactUpdate(DispatchMode):
    """Inside the ``with`` block torch updates as IEEE 754 and the contract define it, whatever the shape and the CPU.

    torch's fp32 root on a CPU is MKL's, which is wrong in the last bit for one value in 150. An fp64 root rounds to the
    right fp32, even if its own last bit is wrong. If the weight of ``lerp_`` is one half or more, the sign of a zero is
    another in torch's vector code than in the scalar code for a tensor's last elements; the contract has the former.
    SGD's momentum begins at +0, so that its first value is never -0; torch begins with a copy of the gradient.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.sqrt.default and not kwargs:
            return args[0].double().sqrt().to(args[0].dtype)
        if func is torch.ops.aten.sqrt_.default and not kwargs:
            return args[0].copy_(args[0].double().sqrt())
        if func is torch.ops.aten.lerp_.Scalar and not kwargs:
            return args[0].copy_(_lerp(*args))
        if func is torch.ops.aten.clone.default:
            return args[0] + 0.0
        return func(*args, **(kwargs or {}))


#: Elements; a multiple of those of a vector on any CPU.
_VECTORS = 64


def _lerp(start: Tensor, end: Tensor, weight: float) -> Tensor:
    """``torch.lerp`` by its vector code alone: the tensors are padded."""
    padding = (0, -start.numel() % _VECTORS)
    padded = torch.lerp(pad(start.flatten(), padding), pad(end.flatten(), padding), weight)
    return padded[: start.numel()].view(start.shape)


def groups(spec: Optimizer, named: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
    """The parameter groups (see :mod:`zerobench.workload.groups`), each with its hyperparameters."""
    pairs = zip(specs(spec), members(spec, named), strict=True)
    return [{"params": [named[name] for name in names], **hyperparameters(each)} for each, names in pairs]


def read_state(
    spec: Optimizer, states: Mapping[Tensor, Mapping[str, Tensor]], named: Mapping[str, nn.Parameter]
) -> dict[str, State]:
    """Each parameter's state tensors by name and key, from an optimizer's ``state``; zeros if never updated."""

    def tensor(p: nn.Parameter, key: str) -> Tensor:
        found = states.get(p, {}).get(key)
        return torch.zeros_like(p) if found is None else found

    return {name: {key: tensor(p, key).detach() for key in state_keys(spec)} for name, p in named.items()}
