"""The settings of FSDP2 that change no value: arguments of ``fully_shard`` and methods of ``FSDPModule``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard import _fsdp_common
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from zerobench.model_specs import Odd, Vit
from zerobench.scenario import Scenario
from zerobench.subject import Batch
from zerobench.subjects.device_mesh import fsdp_mesh
from zerobench.workload.data import DTYPES

_PAGE = "https://docs.pytorch.org/docs/2.13/distributed.fsdp.fully_shard.html"

COLUMNS = "shard_placement_fn=Shard(1)"
#: Matrices are in a group of parameters of their own, with a second mesh of the same ranks.
SECOND_MESH = "shard_placement_fn=ShardPlacementResult"
ROOT_ALONE = "fully_shard of the root alone"
#: The layers of a block are groups of parameters inside it, of which it is a group with few or none.
LAYERS = "fully_shard of layers"
#: The layer that the model's input meets is a group that is not gathered for its backward, which does not use it.
NOT_IN_BACKWARD = "set_unshard_in_backward(False)"
BY_HAND = "unshard(async_op=True)"
UNUSED = "set_reduce_scatter_unused_params"
LAST_BACKWARD = "set_is_last_backward"
KEPT_AFTER_BACKWARD = "set_reshard_after_backward"

PAIRS = "fully_shard of pairs of blocks"
OUTPUT, INPUTS = "output_dtype", "cast_forward_inputs=False"
OWN_COMMS = "set_custom_all_gather and set_custom_reduce_scatter"

FACTOR, SUM = "set_gradient_divide_factor", "set_force_sum_reduction_for_comms"

#: Frozen parameters are the client's.
IGNORED = "ignored_params"
#: The model is built without memory, sharded, and given its values.
META = "to_empty"
#: The client calls the model by another name than ``forward``.
METHOD = "register_fsdp_forward_method"
#: The client's forward raises in the last block, before the step's first one.
RAISED = "reset_iter_state"
#: Of each module by itself, after it is wrapped; the last argument is the number of ranks.
_OF_EACH: dict[str, Callable[[FSDPModule, int], None]] = {
    FACTOR: lambda each, world: each.set_gradient_divide_factor(float(world)),
    SUM: lambda each, _: each.set_force_sum_reduction_for_comms(True),
    "set_all_reduce_hook": lambda each, _: each.set_all_reduce_hook(lambda gradient: None),
    OWN_COMMS: lambda each, _: _communicate(each),
}
#: Of the root, for all modules.
_OF_ALL: dict[str, Callable[[FSDPModule], None]] = {
    UNUSED: lambda root: root.set_reduce_scatter_unused_params(True),
    "set_reduce_scatter_max_input_buffers": lambda root: root.set_reduce_scatter_max_input_buffers(2),
    "set_separate_reduce_scatter_group": lambda root: root.set_separate_reduce_scatter_group(),
    "set_reshard_after_forward": lambda root: root.set_reshard_after_forward(True),
}
#: Of each module, with the modules before and after it.
_PREFETCHES = "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch"

#: Of shards, which an engine with whole parameters has not.
OF_SHARDS = frozenset([COLUMNS, SECOND_MESH, "set_separate_reduce_scatter_group", "set_reshard_after_forward"])

#: Methods of FSDPModule that torch 2.11 lacks.
_NEWER = (UNUSED, "set_reduce_scatter_max_input_buffers", "set_separate_reduce_scatter_group", RAISED)


def _is_in_torch(setting: str) -> bool:
    if setting == SECOND_MESH:
        return hasattr(_fsdp_common, "ShardPlacementResult")
    return setting not in _NEWER or hasattr(FSDPModule, setting)


_NEWEST = (
    COLUMNS,
    SECOND_MESH,
    ROOT_ALONE,
    LAYERS,
    NOT_IN_BACKWARD,
    BY_HAND,
    LAST_BACKWARD,
    KEPT_AFTER_BACKWARD,
    PAIRS,
    OUTPUT,
    INPUTS,
    IGNORED,
    META,
    METHOD,
    RAISED,
    *_OF_EACH,
    *_OF_ALL,
    *_PREFETCHES,
)

#: Those that the installed torch has: 2.11 lacks a class and some methods.
SETTINGS = tuple(name for name in _NEWEST if _is_in_torch(name))


def unsupported(scenario: Scenario) -> str | None:
    """The reason of a setting's documentation against the Scenario, or None."""
    if "set_reshard_after_forward" in scenario.settings and not scenario.placement.parameters:
        return f"set_reshard_after_forward(True) is stage 3: {_PAGE}"
    if UNUSED in scenario.settings and _rests_everywhere(scenario):
        return f"{UNUSED} gives a parameter that no rank uses a gradient of zeros: {_PAGE}"
    if len({ROOT_ALONE, PAIRS, LAYERS}.intersection(scenario.settings)) > 1:
        return "the blocks are groups or they are not"
    if OUTPUT in scenario.settings and scenario.autocast:
        return f"{OUTPUT} casts the output of a block, whose dtype autocast has chosen: {_PAGE}"
    if SECOND_MESH in scenario.settings and (reason := _unsupported_meshes(scenario)) is not None:
        return reason
    if _multiplies_in_nccl(scenario) and scenario.device == "cpu":
        return f"{FACTOR}, if it is not the number of shards, is an operation of NCCL: {_PAGE}"
    between = {LAST_BACKWARD, KEPT_AFTER_BACKWARD}.intersection(scenario.settings)
    if between and scenario.accumulation == 1:
        return f"{min(between)} is for several micro-steps: {_PAGE}"
    return _unsupported_model(scenario)


def _multiplies_in_nccl(scenario: Scenario) -> bool:
    """Whether the reduce-scatter of a mesh with replicas has a factor that gloo does not offer."""
    wire = scenario.communication_dtype or scenario.dtype
    of_nccl = FACTOR in scenario.settings and SUM not in scenario.settings
    return of_nccl and scenario.replicate > 1 and wire != "fp16"


def _unsupported_meshes(scenario: Scenario) -> str | None:
    """The reason against two meshes of a module's parameters, or None."""
    if scenario.replicate > 1:
        return "the second mesh has no replicas"
    if COLUMNS in scenario.settings:
        return "a model has one shard_placement_fn"
    if alone := {OWN_COMMS, "set_all_reduce_hook"}.intersection(scenario.settings):
        return f"{min(alone)} is of modules with one mesh: {_PAGE}"
    return None


def _unsupported_model(scenario: Scenario) -> str | None:
    """The reason of a setting against the Scenario's model, or None."""
    odd = scenario.model if isinstance(scenario.model, Odd) else Odd()
    if IGNORED in scenario.settings and (scenario.dtype != "fp32" or not odd.frozen):
        return f"{IGNORED} leaves the dtype of frozen parameters to the client: {_PAGE}"
    if META in scenario.settings and scenario.model.shares:
        return "without memory a model has no parameter at two places"
    if META in scenario.settings and scenario.frozen_steps:
        return "the client freezes parameters that it no longer has"
    if NOT_IN_BACKWARD in scenario.settings and not isinstance(scenario.model, Vit) and scenario.model.tied:
        return f"{NOT_IN_BACKWARD} is for parameters that the backward does not use: {_PAGE}"
    if RAISED in scenario.settings and (odd.buffers or odd.dropout):
        return "a forward that raises changes buffers, and takes random numbers"
    return None


def ignored(model: nn.Module, scenario: Scenario) -> dict[str, Any]:
    """The argument with the parameters that FSDP2 leaves alone."""
    if IGNORED not in scenario.settings:
        return {}
    return {IGNORED: {p for p in model.parameters() if not p.requires_grad}}


def without_memory(model: nn.Module, scenario: Scenario) -> dict[str, Tensor]:
    """The values of a model that has none any more; nothing without the setting."""
    if META not in scenario.settings:
        return {}
    kept = {name: each.detach().clone() for name, each in (*model.named_parameters(), *model.named_buffers())}
    model.to("meta")
    return kept


@torch.no_grad()
def fill(model: nn.Module, scenario: Scenario, kept: dict[str, Tensor]) -> None:
    """Give the sharded model memory, and those values."""
    if not kept:
        return
    model.to_empty(device=scenario.device)
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        value = kept[name]
        if isinstance(each, DTensor):
            value = distribute_tensor(value, each.device_mesh, each.placements)
        each.copy_(value)


def _rests_everywhere(scenario: Scenario) -> bool:
    """Whether some step may leave a parameter out on all ranks."""
    model = scenario.model
    if not isinstance(model, Odd):
        return False
    return model.unused or model.stopped or (model.by_route and not _routed_by_rank(scenario, model))


def _routed_by_rank(scenario: Scenario, model: Odd) -> bool:
    """Whether some leaf of each step, also of a short one, uses the routed block."""
    leaves = (range(scenario.leaves_of(step)) for step in range(scenario.steps))
    each = (any(scenario.route(step, leaf) for leaf in of_step) for step, of_step in enumerate(leaves))
    return model.routes == "ranks" and all(each)


def placement(
    scenario: Scenario, group: dist.ProcessGroup
) -> Callable[[nn.Parameter], Shard | _fsdp_common.ShardPlacementResult | None] | None:
    """The dimension or the mesh in which each parameter is sharded: the second dimension, if the ranks can share it
    evenly, or a second mesh for matrices. A collective."""
    if SECOND_MESH in scenario.settings:
        second = dist.new_group(dist.get_process_group_ranks(group))
        assert isinstance(second, dist.ProcessGroup)
        mesh = _fsdp_common.FSDPMeshInfo(fsdp_mesh(second, scenario), shard_mesh_dim=0)
        return lambda p: _fsdp_common.ShardPlacementResult(Shard(0), mesh) if p.ndim > 1 else None
    if COLUMNS not in scenario.settings:
        return None
    shards = scenario.mesh.shard
    return lambda p: Shard(1) if p.ndim > 1 and p.shape[1] and p.shape[1] % shards == 0 else None


#: Later torch deprecates the names that 2.11 has.
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class _AllGather(AllGather):
    """An all-gather of the client's own, into memory that it allocates."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        found: dist.Work | None = _gather(output_tensor, input_tensor, group=group, async_op=async_op)
        return found


class _ReduceScatter(ReduceScatter):
    """A reduce-scatter of the client's own."""

    allocate = _AllGather.allocate

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        found: dist.Work | None = _reduce(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        return found


def _communicate(module: FSDPModule) -> None:
    module.set_custom_all_gather(_AllGather())
    module.set_custom_reduce_scatter(_ReduceScatter())


def policy(scenario: Scenario, *, root: bool) -> dict[str, Any]:
    """The arguments of a module's mixed precision beside the dtypes of its parameters and of the reduction."""
    found: dict[str, Any] = {}
    if OUTPUT in scenario.settings:
        found["output_dtype"] = DTYPES["fp32" if root else scenario.dtype]  # the root's output is the loss
    if INPUTS in scenario.settings and not root:  # the root's inputs are in fp32
        found["cast_forward_inputs"] = False
    return found


def grouped(groups: Sequence[list[nn.Module]], scenario: Scenario) -> Sequence[list[nn.Module]]:
    """The blocks that are one group of parameters each, or pairs of those."""
    if PAIRS not in scenario.settings:
        return groups
    pairs = (groups[place : place + 2] for place in range(0, len(groups), 2))
    return [[block for group in pair for block in group] for pair in pairs]


def first_layer(model: nn.Module, scenario: Scenario) -> list[nn.Module]:
    """The layer that is a group of its own because its backward does not use its parameters; else none."""
    if NOT_IN_BACKWARD not in scenario.settings:
        return []
    return [each for name, each in model.named_children() if name in ("stem", "tokens")]


def set_up(model: nn.Module, scenario: Scenario) -> None:
    """Apply a Scenario's settings to a model that is wrapped."""
    modules = list(_sharded(model))
    for name in scenario.settings:
        if name in _OF_ALL:
            _OF_ALL[name](modules[0])
        for each in modules if name in _OF_EACH else ():
            _OF_EACH[name](each, scenario.world)
    for each in first_layer(model, scenario):
        assert isinstance(each, FSDPModule)
        each.set_unshard_in_backward(False)
    _prefetch(modules, scenario)


def _prefetch(modules: Sequence[FSDPModule], scenario: Scenario) -> None:
    """Each block prefetches the two blocks after it in the forward, and before it in the backward."""
    forward, backward = (name in scenario.settings for name in _PREFETCHES)
    blocks = modules[1:]  # the root is gathered before them
    for place, each in enumerate(blocks):
        if forward:
            each.set_modules_to_forward_prefetch(list(blocks[place + 1 : place + 3]))
        if backward:
            each.set_modules_to_backward_prefetch(list(blocks[max(0, place - 2) : place][::-1]))


class _RaisedError(Exception):
    """That of the client's forward."""


def _raise(*_: Any) -> None:
    raise _RaisedError


def _raise_and_reset(model: nn.Module, batch: Batch) -> None:
    *_, last = model.get_submodule("blocks").children()
    handle = last.register_forward_pre_hook(_raise)
    with suppress(_RaisedError):
        model(**batch)
    handle.remove()
    next(_sharded(model)).reset_iter_state()


def called(model: nn.Module, scenario: Scenario) -> Callable[..., Any]:
    """The function by which the client calls the model."""
    if METHOD not in scenario.settings:
        return model
    if not hasattr(model, "loss"):
        setattr(model, "loss", MethodType(type(model).forward, model))  # noqa: B010 - a module has no such attribute
        register_fsdp_forward_method(model, "loss")
    found: Any = model.loss
    return found  # type: ignore[no-any-return]


def before_micro_step(model: nn.Module, scenario: Scenario, batch: Batch, *, first: bool, last: bool) -> None:
    """The caller's calls before a forward and its backward."""
    modules = list(_sharded(model))
    if first and RAISED in scenario.settings:
        _raise_and_reset(model, batch)
    if LAST_BACKWARD in scenario.settings:
        modules[0].set_is_last_backward(last)
    if KEPT_AFTER_BACKWARD in scenario.settings:
        modules[0].set_reshard_after_backward(last)
    for each in modules if BY_HAND in scenario.settings else ():
        each.unshard(async_op=True)


def _sharded(model: nn.Module) -> Iterator[Any]:
    return (each for each in model.modules() if isinstance(each, FSDPModule))
