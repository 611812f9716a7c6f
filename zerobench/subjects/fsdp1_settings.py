"""The settings of FSDP1 that change no value: arguments of its constructor, and the wrapped modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.workload.data import DTYPES

_PAGE = "https://docs.pytorch.org/docs/2.13/fsdp.html"

ROOT_ALONE, MESH, SYNC = "FSDP of the root alone", "device_mesh", "sync_module_states"
#: The layers of a block are FSDP instances inside it.
LAYERS = "FSDP of layers"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "backward_prefetch=BACKWARD_POST": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "backward_prefetch=None": {"backward_prefetch": None},
    "limit_all_gathers=False": {"limit_all_gathers": False},
}
#: Frozen parameters are the client's.
IGNORED = "ignored_states"
#: The model is built without memory, and each module gets its values as it is wrapped.
META = "param_init_fn"
HOOK, COMPRESSED = "register_comm_hook", "register_comm_hook(compress)"
INPUTS = "cast_forward_inputs=False"
#: The client's calls: after a step, and before one with the gradients, which are written back.
APPLIED, SUMMONED = "apply", "summon_full_params(with_grads=True)"
#: Of parameters that keep their names.
OF_NAMED = frozenset([IGNORED, META, SUMMONED])
SETTINGS = (*_ARGUMENTS, ROOT_ALONE, LAYERS, MESH, IGNORED, META, HOOK, COMPRESSED, INPUTS, APPLIED, SUMMONED)


def unsupported(scenario: Scenario) -> str | None:
    """The reason of a setting's documentation against the Scenario, or None."""
    if scenario.ranks_differ and scenario.device == "cpu":
        return f"FSDP1 broadcasts the parameters of rank 0 ({SYNC}) on a GPU alone: {_PAGE}"
    if MESH in scenario.settings and not scenario.stage:
        return f"a device mesh is of shards: {_PAGE}"
    odd = scenario.model if isinstance(scenario.model, Odd) else Odd()
    excluded = {
        f"{IGNORED} leaves the dtype of frozen parameters to the client: {_PAGE}": (
            IGNORED in scenario.settings and (scenario.dtype != "fp32" or not odd.frozen)
        ),
        f"without memory a model has no parameter at two places: {_PAGE}": (
            META in scenario.settings and scenario.model.shares
        ),
        "the client freezes parameters that it no longer has": (
            META in scenario.settings and bool(scenario.frozen_steps)
        ),
        "the blocks have FSDP instances or they do not": {ROOT_ALONE, LAYERS}.issubset(scenario.settings),
        "the client builds the parameters that FSDP1 ignores": {META, IGNORED}.issubset(scenario.settings),
        f"communication hooks are not of hybrid shards: {_PAGE}": (
            bool({HOOK, COMPRESSED}.intersection(scenario.settings)) and scenario.replicate > 1
        ),
        "FSDP1 takes one communication hook": {HOOK, COMPRESSED}.issubset(scenario.settings),
        f"{COMPRESSED} reduces gradients in fp32 in 16 bits: {_PAGE}": (
            COMPRESSED in scenario.settings and (scenario.dtype != "fp32" or _compressed(scenario) is None)
        ),
    }
    return next((reason for reason, there in excluded.items() if there), None)


def _compressed(scenario: Scenario) -> str | None:
    """The 16-bit dtype in which gradients are reduced, or None."""
    return scenario.communication_dtype if scenario.communication_dtype != "fp32" else None


def ignored(model: nn.Module, scenario: Scenario) -> dict[str, Any]:
    """The argument with the parameters that FSDP1 leaves alone."""
    if IGNORED not in scenario.settings:
        return {}
    return {"ignored_states": [p for p in model.parameters() if not p.requires_grad]}


def reduce_dtype(scenario: Scenario) -> torch.dtype | None:
    """The dtype of the reduction; a hook of the client's chooses its own."""
    wire = scenario.communication_dtype or scenario.dtype
    return None if COMPRESSED in scenario.settings else DTYPES[wire]


def without_memory(model: nn.Module, scenario: Scenario) -> dict[str, Any]:
    """The argument that gives modules their values, which the model then no longer has; nothing without the setting."""
    if META not in scenario.settings:
        return {}
    kept = {module: _own(module) for module in model.modules()}
    model.to("meta")
    return {META: partial(_fill, kept, torch.device(scenario.device))}


def _own(module: nn.Module) -> dict[str, Tensor]:
    """The values of a module's own parameters and buffers."""
    own: Iterable[tuple[str, Tensor]] = (
        *module.named_parameters(recurse=False),
        *module.named_buffers(recurse=False),
    )
    return {name: each.detach().clone() for name, each in own}


@torch.no_grad()
def _fill(kept: Mapping[nn.Module, Mapping[str, Tensor]], device: torch.device, module: nn.Module) -> None:
    module.to_empty(device=device, recurse=False)
    for name, value in kept.get(module, {}).items():
        getattr(module, name).copy_(value)


def set_up(module: FullyShardedDataParallel, scenario: Scenario, group: dist.ProcessGroup) -> None:
    """Register the communication hook of a Scenario's settings."""
    sharded = scenario.stage and scenario.world > 1  # a single rank has no shards
    hook: Callable[..., Any] = default_hooks.reduce_scatter_hook if sharded else default_hooks.allreduce_hook
    if HOOK in scenario.settings:
        module.register_comm_hook(default_hooks.DefaultState(group), hook)
    if COMPRESSED in scenario.settings:
        bf16, fp16 = default_hooks.bf16_compress_hook, default_hooks.fp16_compress_hook
        hook = bf16 if _compressed(scenario) == "bf16" else fp16
        state: Any = default_hooks.LowPrecisionState(group)  # type: ignore[no-untyped-call]
        module.register_comm_hook(state, hook)


def before_step(module: FullyShardedDataParallel, scenario: Scenario) -> None:
    """The client's calls before a step."""
    if SUMMONED in scenario.settings:
        with FullyShardedDataParallel.summon_full_params(module, with_grads=True):
            pass


def after_step(module: FullyShardedDataParallel, scenario: Scenario) -> None:
    """The client's calls after a step."""
    if APPLIED in scenario.settings:
        module.apply(lambda _: None)


def arguments(scenario: Scenario) -> dict[str, Any]:
    """The arguments of the constructor."""
    found: dict[str, Any] = {SYNC: scenario.ranks_differ}
    for name in scenario.settings:
        found |= _ARGUMENTS.get(name, {})
    return found
