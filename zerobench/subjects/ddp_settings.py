"""The settings of DistributedDataParallel that change no value: arguments of its constructor, and hooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subjects import client_settings, plain_settings

_PAGE = "https://docs.pytorch.org/docs/2.13/generated/torch.nn.parallel.DistributedDataParallel.html"

_SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/parallel/distributed.py"

_HOOKS = "https://docs.pytorch.org/docs/2.13/ddp_comm_hooks.html#powersgd-communication-hook"

_AVERAGING = "https://docs.pytorch.org/docs/2.13/distributed.optim.html#torch.distributed.optim.PostLocalSGDOptimizer"

_ROWS = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/algorithms/model_averaging/utils.py"

JOIN, INIT = "Join", "init_sync=False"
THROWS = "Join(throw_on_early_termination=True)"
MESH, DELAYED, SKIPPED = "device_mesh", "delay_all_reduce_named_params", "skip_all_reduce_unused_params"
POWER = "powerSGD_hook that compresses nothing"
HOOK = "allreduce_hook"
#: Gradients are all-reduced over a subgroup of all ranks from the second backward on.
LOCAL, WRAPPED = "post_localSGD_hook", "fp16_compress_wrapper(allreduce_hook)"
#: An optimizer that averages the ranks' parameters, which are equal, after each step.
AVERAGED = "PostLocalSGDOptimizer"
#: Each rank is a process group of its own, and its step is followed by an average of all ranks' parameters. Without
#: momentum and weight decay that is a step with the average of their gradients.
ALONE = "PeriodicModelAverager of ranks alone"
Averager = PeriodicModelAverager
#: Arguments of the constructor. Buckets of a few bytes hold a parameter each.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "bucket_cap_mb": {"bucket_cap_mb": 1e-5},
    "bucket_cap_mb_list": {"bucket_cap_mb_list": [1e-5, 1e-4]},
    "batched_grad_copy": {"batched_grad_copy": True},
    SKIPPED: {SKIPPED: True},
    INIT: {"init_sync": False},
}
FEEDBACK = "powerSGD_hook with error feedback"
HOOKS = HOOK, POWER, FEEDBACK, LOCAL, WRAPPED
#: After a step the client goes on with a copy of the module and its optimizer, as a search that copies its best model.
#: DDP can be copied and pickled with the default group: see ``DistributedDataParallel.__getstate__``.
COPIED = "copy.deepcopy"
#: Its default: each forward begins with the buffers of rank 0. The suite's usual one leaves each rank its own.
BUFFERS = "forward_sync_buffers"
#: Of the client's own optimizer, which an engine with its own one has not.
OF_OPTIMIZER = (AVERAGED, ALONE, COPIED)
SETTINGS = (*_ARGUMENTS, MESH, DELAYED, JOIN, THROWS, BUFFERS, *HOOKS)
_NOT_COPIED = *plain_settings.HOOKS, *plain_settings.SCALERS
#: Peculiarities with which the first parameter's gradient may come before the last one's.
_UNORDERED = "scalar", "tiny", "empty", "transposed", "high", "tied", "functional"


def may_rest(scenario: Scenario) -> bool:
    """Whether the first block may be frozen in the last backward of a step, which reduces."""
    return bool(scenario.frozen_steps) or client_settings.FROZEN_LAST in scenario.settings


def unsupported(scenario: Scenario, *, looks_for_unused: bool, static_graph: bool) -> str | None:
    """The reason of a setting's documentation against the Scenario, or None."""
    odd = scenario.model if isinstance(scenario.model, Odd) else Odd()
    if SKIPPED in scenario.settings and (odd.by_route or may_rest(scenario) or not looks_for_unused):
        return f"{SKIPPED} demands that all leaves leave out the same parameters: {_PAGE}"
    unordered = any(getattr(odd, name) for name in _UNORDERED)
    if DELAYED in scenario.settings and (unordered or looks_for_unused or static_graph):
        return f"{DELAYED} demands a gradient that comes after the delayed one: {_PAGE}"
    if INIT in scenario.settings and scenario.ranks_differ:
        return f"{INIT} leaves it to the client that the ranks' models are equal: {_PAGE}"
    if FEEDBACK in scenario.settings and not scenario.poison:
        return f"{FEEDBACK} adds the ranks' differences to the next gradients, which rounds: {_HOOKS}"
    if WRAPPED in scenario.settings and scenario.dtype != "fp16":
        return f"{WRAPPED} rounds other gradients to fp16: {_HOOKS}"
    if (reason := _unsupported_average(scenario, odd)) is not None:
        return reason
    if COPIED in scenario.settings and (reason := _unsupported_copy(scenario)) is not None:
        return reason
    if len(set(HOOKS).intersection(scenario.settings)) > 1:
        return f"DDP takes one communication hook: {_PAGE}"
    if {JOIN, THROWS}.issubset(scenario.settings):
        return "a loop has one Join"
    return _unsupported_buffers(scenario, odd)


def _unsupported_buffers(scenario: Scenario, odd: Odd) -> str | None:
    """The reason against the buffers of rank 0, or None."""
    if BUFFERS not in scenario.settings or not odd.buffers:
        return None
    if others := {JOIN, THROWS, ALONE}.intersection(scenario.settings):
        return f"{min(others)} has the buffers of another rank than the first: {_PAGE}"
    if scenario.forwards != "one":
        return f"{BUFFERS} changes buffers between the forwards of a backward: {_PAGE}"
    return None


def _unsupported_average(scenario: Scenario, odd: Odd) -> str | None:
    """The reason against an average of the parameters, or None."""
    if {AVERAGED, ALONE}.intersection(scenario.settings) and odd.transposed:
        return f"an average lays a transposed parameter out in rows, with which gradients round otherwise: {_ROWS}"
    if AVERAGED in scenario.settings and scenario.world & (scenario.world - 1):
        return f"{AVERAGED} averages the equal parameters of {scenario.world} ranks, which rounds: {_AVERAGING}"
    if {AVERAGED, plain_settings.CLOSURE}.issubset(scenario.settings):
        return f"{AVERAGED}.step() takes no closure: {_AVERAGING}"
    return _unsupported_alone(scenario) if ALONE in scenario.settings else None


def _unsupported_alone(scenario: Scenario) -> str | None:
    """The reason against local steps and an average of the parameters, or None."""
    rule = scenario.optimizer
    linear = rule.name == "sgd" and rule.momentum == rule.weight_decay == 0.0
    if not linear or rule.second_group or rule.third_group or scenario.clip or scenario.dtype != "fp32":
        return f"{ALONE} averages updates, which are linear in the gradients for plain SGD alone: {_AVERAGING}"
    if scenario.data != "dyadic" or scenario.steps > 2 or math.frexp(rule.lr)[0] != 0.5:
        return f"{ALONE} rounds each rank's update before the average: {_AVERAGING}"
    if scenario.world & (scenario.world - 1):
        return f"{ALONE} averages over {scenario.world} ranks, which rounds: {_AVERAGING}"
    if scenario.ranks_differ:
        return f"{ALONE} leaves it to the client that the ranks' models are equal: {_AVERAGING}"
    if others := {*HOOKS, MESH, JOIN, THROWS, AVERAGED}.intersection(scenario.settings):
        return f"{min(others)} is of several ranks"
    return None


def _unsupported_copy(scenario: Scenario) -> str | None:
    """The reason against training with a copy of the module, or None."""
    if others := {*HOOKS, MESH, DELAYED, AVERAGED, ALONE, *_NOT_COPIED}.intersection(scenario.settings):
        return f"{min(others)} is of the first module alone: {_SOURCE}"
    if scenario.scales_dynamically or scenario.frozen_steps:
        return "the scaler, and the client that freezes parameters, have the first module"
    return None


def own_group(scenario: Scenario, group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The process group over which gradients are reduced. A collective of all processes."""
    if COPIED in scenario.settings:
        return dist.group.WORLD or group
    if ALONE not in scenario.settings:
        return group
    alone, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
    assert isinstance(alone, dist.ProcessGroup)
    return alone


def averager(scenario: Scenario, group: dist.ProcessGroup) -> Averager | None:
    """The averager that the client calls after a step of its own; None if the Scenario has none."""
    return PeriodicModelAverager(period=1, process_group=group) if ALONE in scenario.settings else None


def means(own: Mapping[str, Tensor], parameters: Mapping[str, Tensor], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """The averages of the ranks' gradients; a rank that has none of a parameter counts as zeros."""
    found = {}
    for name, p in parameters.items():
        there = torch.tensor(float(name in own))
        value = own[name].clone() if name in own else torch.zeros_like(p)
        dist.all_reduce(there, group=group)
        dist.all_reduce(value, group=group)
        if there:
            found[name] = value / dist.get_world_size(group)
    return found


def arguments(scenario: Scenario, model: nn.Module, group: dist.ProcessGroup) -> dict[str, Any]:
    """The arguments of the constructor, with the group."""
    found: dict[str, Any] = {"process_group": group}
    for name in scenario.settings:
        found |= _ARGUMENTS.get(name, {})
    if MESH in scenario.settings:
        found["process_group"], found["device_mesh"] = None, DeviceMesh.from_group(group, scenario.device)
    if DELAYED in scenario.settings:
        hooked, *_, delayed = _trained(model)
        found |= {DELAYED: [delayed], "param_to_hook_all_reduce": hooked[1]}
    return found


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The trained parameters, from the first that a forward uses to the last."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def joined(module: DistributedDataParallel, scenario: Scenario) -> AbstractContextManager[Any]:
    """The context of a forward and backward in which a rank may be out of batches; none is."""
    if THROWS in scenario.settings:
        return Join([module], throw_on_early_termination=True)
    return Join([module]) if JOIN in scenario.settings else nullcontext()


def averaged(optimizer: torch.optim.Optimizer, scenario: Scenario, group: dist.ProcessGroup) -> torch.optim.Optimizer:
    """The optimizer, or one that averages the parameters after each of its steps."""
    if AVERAGED not in scenario.settings:
        return optimizer
    from torch.distributed.optim import PostLocalSGDOptimizer

    averager = PeriodicModelAverager(period=1, warmup_steps=0, process_group=group)
    return PostLocalSGDOptimizer(optimizer, averager)


def hook(module: DistributedDataParallel, scenario: Scenario, group: dist.ProcessGroup) -> None:
    """Register the communication hook of a Scenario's settings."""
    if HOOK in scenario.settings:
        module.register_comm_hook(group, allreduce_hook)
    if WRAPPED in scenario.settings:
        module.register_comm_hook(group, fp16_compress_wrapper(allreduce_hook))
    if LOCAL in scenario.settings:
        local: Any = PostLocalSGDState(group, group, start_localSGD_iter=1)  # type: ignore[no-untyped-call]
        module.register_comm_hook(local, post_localSGD_hook)
    for name in {POWER, FEEDBACK}.intersection(scenario.settings):
        # from the third backward on by its own code, with all gradients as they are
        state = PowerSGDState(
            group,
            start_powerSGD_iter=2,
            min_compression_rate=1e9,
            use_error_feedback=name == FEEDBACK,
            warm_start=False,
        )
        module.register_comm_hook(state, powerSGD_hook)
