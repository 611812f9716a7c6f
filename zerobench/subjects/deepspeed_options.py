"""The settings of DeepSpeed that change no value: keys of its configuration, its schedules, and ways to accumulate."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from zerobench.model_specs import Odd
from zerobench.scenario import Scenario
from zerobench.subject import Batch
from zerobench.subjects import (
    client_settings,
    deepspeed_checkpointing,
    deepspeed_leaves,
    deepspeed_saving,
    group_settings,
    plain_settings,
)
from zerobench.workload.forwards import loss_of
from zerobench.workload.groups import specs

_PAGE = "https://www.deepspeed.ai/docs/config-json/"
_ENGINE = "https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/runtime/engine.py"
_HOOK = "https://docs.pytorch.org/docs/2.13/generated/torch.nn.Module.html#torch.nn.Module.register_full_backward_hook"
_SCHEDULES = "https://deepspeed.readthedocs.io/en/latest/schedulers.html"

UNMANAGED = "managed_gradient_accumulation=false"
NO_SYNC, COALESCED, DIVIDED = "no_sync", "coalesce_grad_reduction", "backward(scale_wrt_gas=False)"
#: The client calls ``backward`` of the loss in place of the engine's, or of the loss that the engine has scaled.
BACKWARD, SCALED = "loss.backward()", "scale(loss).backward()"
ELASTIC, NO_NORM, SUM = "elastic_checkpoint", "compute_grad_norm=false", "gradient_allreduce_op=sum"
#: A load gives the masters the weights of the model; the client calls the engine's zero_grad before each step.
MASTERS, ZEROED = "load_from_fp32_weights=false", "engine.zero_grad()"
#: Before a step's first micro-step the client drops the gradients of another one, whose batch it leaves out.
DROPPED = "engine.zero_grad() after a micro-step"
#: Functions that the client calls: on the model before the engine, or between steps.
CONVERTED, LEAVES, OFFLOADED, EMPTIED = "zero.Init", "set_z3_leaf_modules", "offload_states", "empty_partition_cache"
#: All blocks are leaves, as the threshold is the granularity of the coarsest one.
GRANULARITY = "stage3_module_granularity_threshold"
#: An engine with ``torch_autocast`` in fp16 was built before in the process.
NEIGHBOUR = "after an engine with torch_autocast"
#: The client zeroes gradients by the function for a list of parameters.
VECTORIZED = "safe_update_full_grad_vectorized"
#: A short step has its number of micro-steps by the engine's function for that.
BATCH_SIZE = "set_train_batch_size"
#: The model's parameters are read from the file that the engine saves for a program without it.
EXPORTED = "save_16bit_model"
#: Ways to accumulate; a Scenario has one of them.
ACCUMULATIONS = frozenset([UNMANAGED, NO_SYNC, COALESCED, DIVIDED, BACKWARD, SCALED])
_SHARDED = (1, 2, 3)
#: Elements of a bucket that has more than any of the odd models.
_LARGE = 500_000_000
#: Of ``zero_optimization``: the stages, and the keys.
_ZERO: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "contiguous_gradients=false": ((1, 2, 3), {"contiguous_gradients": False}),
    "reduce_scatter=false": ((1, 2), {"reduce_scatter": False}),
    "allgather_partitions=false": ((1, 2), {"allgather_partitions": False}),
    "use_multi_rank_bucket_allreduce=false": ((1, 2), {"use_multi_rank_bucket_allreduce": False}),
    "prescale_gradients": ((0, 1, 2), {"reduce_scatter": False}),  # it is refused beside a reduce-scatter
    "parameter_alignment": ((1, 2), {"parameter_alignment": True}),
    "ignore_unused_parameters=false": ((2,), {"ignore_unused_parameters": False}),
    "stage3_model_persistence_threshold": ((3,), {"stage3_model_persistence_threshold": 10}),
    "stage3_use_all_reduce_for_fetch_params": ((3,), {"stage3_use_all_reduce_for_fetch_params": True}),
    "stage3_allgather_sequential": ((3,), {"stage3_allgather_sequential": True}),
    "memory_efficient_linear=false": ((3,), {"memory_efficient_linear": False}),
    "enable_sanity_checks": ((3,), {"enable_sanity_checks": True}),
    "override_module_apply=false": ((3,), {"override_module_apply": False}),
    "pipeline_loading_checkpoint": ((3,), {"pipeline_loading_checkpoint": True}),
    MASTERS: ((1, 2), {"load_from_fp32_weights": False}),
    ZEROED: ((0, 1, 2, 3), {}),
    DROPPED: ((0, 1, 2, 3), {}),
    "zero_hpz_partition_size": ((3,), {"zero_hpz_partition_size": 2}),
    ELASTIC: ((1, 2), {"elastic_checkpoint": True}),
    NO_NORM: ((1, 2), {"compute_grad_norm": False}),
    CONVERTED: ((3,), {}),
    LEAVES: ((3,), {}),
    GRANULARITY: ((3,), {}),
    OFFLOADED: ((1, 2, 3), {}),
    EMPTIED: ((1, 2, 3), {}),
    EXPORTED: ((0, 1, 2, 3), {"stage3_gather_16bit_weights_on_model_save": True}),
    BACKWARD: ((1, 2, 3), {}),
    SCALED: ((1, 2, 3), {}),
    SUM: ((0, 1, 2), {}),
    NEIGHBOUR: ((0, 1, 2, 3), {}),
    BATCH_SIZE: ((0, 1, 2, 3), {}),
    VECTORIZED: ((0, 1, 2, 3), {}),
    deepspeed_checkpointing.CHECKPOINTED: ((0, 1, 2, 3), {}),
    plain_settings.SPARSE: ((0,), {}),
    **{
        name: ((0, 1, 2, 3), {})
        for name in (
            *plain_settings.CODE,
            plain_settings.INFERENCE,
            *client_settings.CODE,
            client_settings.CAST,
            client_settings.STEPPED,
            *group_settings.GROUPS,
        )
    },
    client_settings.DIFFERENTIATED: ((1, 2, 3), {}),  # stage 0 refuses each backward but engine.backward()
}
#: Of the whole configuration; 16-bit keys add to those of the dtype.
_WHOLE: dict[str, dict[str, Any]] = {
    "prescale_gradients": {"prescale_gradients": True},
    "bf16.immediate_grad_update": {"bf16": {"enabled": True, "immediate_grad_update": True}},
    "bf16.check_grad_overflow=false": {"bf16": {"enabled": True, "check_grad_overflow": False}},
    UNMANAGED: {"managed_gradient_accumulation": False},
    SUM: {"gradient_allreduce_op": "sum"},
    "wall_clock_breakdown": {"wall_clock_breakdown": True},
    "flops_profiler": {"flops_profiler": {"enabled": True, "profile_step": 1, "output_file": os.devnull}},
}
#: Schedules whose rates stay the same, by their name, with the parameters for the groups' rates.
_RATES: dict[str, Callable[[list[float]], dict[str, Any]]] = {
    "WarmupLR": lambda lrs: {"warmup_min_lr": lrs, "warmup_max_lr": lrs, "warmup_num_steps": 2},
    "WarmupDecayLR": lambda lrs: {
        "warmup_min_lr": lrs, "warmup_max_lr": lrs, "warmup_num_steps": 1000, "total_num_steps": 2000
    },
    "WarmupCosineLR": lambda _: {
        "warmup_min_ratio": 1.0, "cos_min_ratio": 1.0, "warmup_num_steps": 2, "total_num_steps": 4
    },
    "OneCycle": lambda lrs: {"cycle_min_lr": lrs, "cycle_max_lr": lrs},
    "LRRangeTest": lambda lrs: {"lr_range_test_min_lr": lrs, "lr_range_test_step_rate": 0.0},
}  # fmt: skip
_SCHEDULERS = tuple(f"scheduler {name}" for name in _RATES)
SETTINGS = (*_ZERO, *_WHOLE, *_SCHEDULERS, NO_SYNC, COALESCED, DIVIDED, *plain_settings.FORMS)


def unsupported(scenario: Scenario) -> str | None:
    """The reason of a setting's documentation against the Scenario, or None."""
    if (reason := deepspeed_saving.unsupported(scenario)) is not None:
        return reason
    if (reason := deepspeed_checkpointing.unsupported(scenario)) is not None:
        return reason
    if (reason := plain_settings.unsupported_sparse(scenario) or _unsupported_drop(scenario)) is not None:
        return reason
    if (reason := plain_settings.unsupported_code(scenario) or client_settings.unsupported(scenario)) is not None:
        return reason
    if (reason := group_settings.unsupported(scenario)) is not None:
        return reason
    reasons = (_unsupported(name, scenario) | _unlike_accumulation(name, scenario) for name in scenario.settings)
    return next((reason for each in reasons for reason, there in each.items() if there), None)


def _unsupported(name: str, scenario: Scenario) -> dict[str, bool]:
    """The reasons against a setting, and whether each is there."""
    return {
        f"{name} is of stages {_ZERO.get(name, (_SHARDED,))[0]}: {_PAGE}": (
            name in _ZERO and scenario.stage not in _ZERO[name][0]
        ),
        f"{name} rounds the masters to 16 bits: {_PAGE}": name == MASTERS and scenario.dtype != "fp32",
        f"{name} is of bf16: {_PAGE}": name.startswith("bf16.") and scenario.dtype != "bf16",
        f"without {name} it skips no step: {_PAGE}": "overflow" in name and bool(scenario.poison),
        f"{name} ends the training: {_PAGE}": name.startswith("ignore_unused") and scenario.leaves_some_out,
        f"a schedule of DeepSpeed's sets the rates: {_SCHEDULES}": (
            name in _SCHEDULERS and (len(scenario.settings) > 1 or bool(scenario.schedules))
        ),
        f"{name} is for groups of two ranks: {_PAGE}": name.startswith("zero_hpz") and scenario.world != 4,
        f"{name} is for a step without clipping, and has no norm: {_PAGE}": (
            name == NO_NORM and bool(scenario.clip or scenario.dtype != "fp32" or scenario.optimizer_at != "none")
        ),
        f"without the norm that {name} leaves out, fp32 is not checked for overflow: {_PAGE}": (
            name == NO_NORM and bool(scenario.poison)
        ),
        f"{name} calls a backward hook, beside which torch allows no edit of an output in place: {_HOOK}": (
            name in (LEAVES, GRANULARITY) and isinstance(scenario.model, Odd) and scenario.model.in_place
        ),
        f"it depends on the buckets whether {name} is wrong: reports/findings/deepspeed/leaf-called-twice": (
            name in (LEAVES, GRANULARITY) and _depends_on_buckets(scenario)
        ),
        f"{name} is for blocks that are finer than the model: {_PAGE}": (
            name == GRANULARITY and not deepspeed_leaves.threshold(scenario.model)
        ),
        f"{name} refuses offloaded parameters: {_ENGINE}": name == OFFLOADED and scenario.parameters_at != "none",
        f"{name} sets gradients of the client's": name == VECTORIZED and not scenario.gradient_edits,
        f"with {name} the client divides by {scenario.world} ranks, which rounds": (
            name == SUM and bool(scenario.world & (scenario.world - 1))
        ),
        f"with {name} the client divides before the backward, so that more gradients of fp16 underflow": (
            name == SUM and scenario.dtype == "fp16" and scenario.accumulator_dtype == "fp32"
        ),
    }


def _unsupported_drop(scenario: Scenario) -> str | None:
    """The reason against a backward beside those of the micro-steps, or None."""
    if not tells_boundaries(scenario):
        return None
    if DROPPED in scenario.settings and scenario.accumulation == 1:
        return f"{DROPPED} is for several micro-steps: {_ENGINE}"
    if others := {*ACCUMULATIONS, BATCH_SIZE}.intersection(scenario.settings):
        return f"the client tells the engine the boundaries, and with {min(others)} it counts: {_ENGINE}"
    return plain_settings.unsupported_repetition(scenario)


def tells_boundaries(scenario: Scenario) -> bool:
    """Whether a step has a backward that is none of its micro-steps, so that the client tells which ends the step."""
    return not {DROPPED, *client_settings.FROZEN}.isdisjoint(scenario.settings)


def _unlike_accumulation(name: str, scenario: Scenario) -> dict[str, bool]:
    """Those against a way to accumulate."""
    return {
        f"{name} is for several micro-steps that one reduction follows: {_ENGINE}": (
            name in (NO_SYNC, COALESCED) and (scenario.accumulation == 1 or scenario.reduction != "boundary")
        ),
        f"{name} is of stages 0 and 1: {_ENGINE}": name == NO_SYNC and scenario.stage > 1,
        f"{name} is of stages 1 to 3: {_ENGINE}": name == COALESCED and not scenario.stage,
        f"{name} completes the gradients in step(), after they were read: {_ENGINE}": (
            name == UNMANAGED and (scenario.stage < 3 or scenario.offload_optimizer != "none")
        ),
        f"{name} is for steps of unlike numbers of micro-steps: {_ENGINE}": (
            name == BATCH_SIZE and not scenario.shortens
        ),
        f"{name} is the number that the engine counts: {_ENGINE}": (
            name == BATCH_SIZE and not ACCUMULATIONS.isdisjoint(scenario.settings)
        ),
        f"{name} demands the scaled loss in fp16: {_ENGINE}": name == BACKWARD and scenario.dtype == "fp16",
        f"{name} is the only way to accumulate: {_ENGINE}": (
            name in ACCUMULATIONS and len(ACCUMULATIONS.intersection(scenario.settings)) > 1
        ),
    }


def _depends_on_buckets(scenario: Scenario) -> bool:
    """Whether leaves run twice in two forwards, or share a parameter, so that no Scenario tells what comes of it."""
    shared = isinstance(scenario.model, Odd) and scenario.model.tied_blocks
    return shared or (scenario.forwards == "two" and scenario.reduce_bucket < _LARGE)


def configured(out: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """A configuration with a Scenario's settings."""
    for name in scenario.settings:
        out |= _WHOLE.get(name, {})
        out["zero_optimization"] |= _ZERO[name][1] if name in _ZERO else {}
        if name == GRANULARITY:
            out["zero_optimization"][GRANULARITY] = deepspeed_leaves.threshold(scenario.model)
        if name in _SCHEDULERS:
            kind = name.removeprefix("scheduler ")
            rates = [group.lr for group in specs(scenario.optimizer)]
            out["scheduler"] = {"type": kind, "params": _RATES[kind](rates)}
        if name in (NO_SYNC, COALESCED):
            out["gradient_accumulation_steps"] = 1  # the client accumulates
    out["checkpoint"] = deepspeed_saving.keys(scenario)
    return out


def accumulates_itself(scenario: Scenario) -> bool:
    """Whether the client accumulates gradients, in place of the engine."""
    return not {NO_SYNC, COALESCED, UNMANAGED}.isdisjoint(scenario.settings)


def counts_otherwise(scenario: Scenario) -> bool:
    """Whether the engine's count of samples is not that of whole steps."""
    return accumulates_itself(scenario) or BATCH_SIZE in scenario.settings


def share(scenario: Scenario, number: int) -> float:
    """The divisor by which the client divides a loss in a step of so many micro-steps, as the engine does not."""
    if BATCH_SIZE in scenario.settings:
        return scenario.accumulation / number
    ranks = scenario.world if SUM in scenario.settings else 1
    return ranks * (scenario.accumulation if not {NO_SYNC, COALESCED, DIVIDED}.isdisjoint(scenario.settings) else 1)


def prepare(deepspeed: Any, model: nn.Module, scenario: Scenario, config: dict[str, Any]) -> None:
    """The client's calls before the engine: partition the model, or name its blocks as leaves."""
    plain_settings.make_sparse(model, scenario)
    deepspeed_checkpointing.change_blocks(deepspeed, model, scenario)
    if NEIGHBOUR in scenario.settings:
        _build_neighbour(deepspeed)
    if CONVERTED in scenario.settings:
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
    if LEAVES in scenario.settings:
        deepspeed.utils.set_z3_leaf_modules(model, [type(each) for each in model.get_submodule("blocks").children()])


def _build_neighbour(deepspeed: Any) -> None:
    """An engine of another model, with torch_autocast in fp16, which does nothing and ends."""
    other = nn.Linear(2, 2)
    config = {"train_micro_batch_size_per_gpu": 1, "torch_autocast": {"enabled": True, "dtype": "float16"}}
    engine, *_ = deepspeed.initialize(model=other, optimizer=torch.optim.SGD(other.parameters()), config=config)
    engine.destroy()


def go_back_frozen(engine: Any, model: nn.Module, batch: Batch, scenario: Scenario, *, last: bool) -> None:
    """The client's backward of zero times the loss while the first block is frozen; whether it ends the step."""
    engine.set_gradient_accumulation_boundary(last)
    with client_settings.frozen_block(model), plain_settings.mode(engine, scenario):
        engine.backward(client_settings.zero_loss(engine, batch, scenario))


def set_micro_steps(engine: Any, scenario: Scenario, number: int) -> None:
    """The client's call before a step of so many micro-steps, after which the engine divides by their number."""
    if BATCH_SIZE in scenario.settings:
        engine.set_train_batch_size(number * engine.train_micro_batch_size_per_gpu() * scenario.world)


def begin(engine: Any, model: nn.Module, batch: Batch, scenario: Scenario, backward: Callable[[Tensor], None]) -> None:
    """The client's calls before the first micro-step of a step, of which some train on its batch."""
    client_settings.cast_and_back(engine, scenario)
    if ZEROED in scenario.settings:
        engine.zero_grad()
    if DROPPED in scenario.settings:
        engine.set_gradient_accumulation_boundary(False)
        backward(loss_of(scenario, engine, batch))
        engine.zero_grad()
    if client_settings.FROZEN_FIRST in scenario.settings:
        go_back_frozen(engine, model, batch, scenario, last=False)


def backward_of_loss(engine: Any, scenario: Scenario, loss: Tensor) -> bool:
    """The backward if the client calls it without the engine; returns whether the client does."""
    if BACKWARD in scenario.settings:
        loss.backward()  # type: ignore[no-untyped-call]
    elif SCALED in scenario.settings:
        engine.scale(loss).backward()
    else:
        return False
    return True


def between_steps(engine: Any, scenario: Scenario) -> None:
    """The client's calls after a step."""
    if OFFLOADED in scenario.settings:
        engine.offload_states(include=_moved(scenario))
        engine.reload_states()
    if EMPTIED in scenario.settings:
        engine.empty_partition_cache()


def _moved(scenario: Scenario) -> set[Any] | None:
    """The states that the client offloads: all, or at stage 3 those that do not demand DeepSpeed's own fused Adam."""
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kinds

    if not scenario.placement.parameters:
        return None
    return {Kinds.lp_params, Kinds.lp_grads, Kinds.contiguous_grad_buffer}


def context(engine: Any, scenario: Scenario, micro_step: int, number: int) -> tuple[AbstractContextManager[None], bool]:
    """The context of micro-step ``micro_step`` of ``number``, if one begins with it, and whether it ends with this."""
    last = micro_step == number - 1
    if NO_SYNC in scenario.settings:
        return (nullcontext() if last else engine.no_sync()), True
    if COALESCED in scenario.settings and not micro_step:
        return engine.coalesce_grad_reduction(), last
    return nullcontext(), last
