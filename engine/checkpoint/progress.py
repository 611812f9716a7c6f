"""Progress: the training state besides the values: counters, groups, step counts, loss scaler, schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zerobench.engine.checkpoint.extra_states import encoded_states
from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import buffer_aliases, buffers, other_names
from zerobench.engine.checkpoint.plain import decode, encode
from zerobench.engine.checkpoint.record import (
    BufferEntry,
    Contents,
    GroupEntry,
    OptimizerEntry,
    ParameterEntry,
    ScalerEntry,
    ScheduleEntry,
)
from zerobench.engine.config.schema import DTYPES
from zerobench.engine.errors import CheckpointError
from zerobench.engine.layout import dense_stride


def contents(parts: Parts, client_state: dict[str, Any], *, frozen: bool) -> Contents:
    """The record of an engine's progress.

    Raises:
        CheckpointError: the client's state, a group's option or the schedule's state is not plain (see plain.py).
    """
    return Contents(
        world=parts.ranks.world,
        dtype=precision(parts),
        parameters=parameter_entries(parts),
        tied=aliases(parts.module),
        buffers={name: buffer_entry(buffer) for name, buffer in buffers(parts.module).items()},
        frozen=frozen,
        optimizer=_optimizer(parts),
        loss_scaler=ScalerEntry(**parts.scaler.state()),
        lr_scheduler=_schedule(parts.lr_scheduler),
        global_steps=parts.global_steps,
        skipped_steps=parts.skipped_steps,
        micro_steps=parts.accumulation.finished,
        gradient_accumulation_steps=parts.accumulation.steps,
        client_state=encode(_as_dict(client_state), "client_state"),
        extra_states=encoded_states(parts.module) if parts.ranks.rank == 0 else {},
    )


def _as_dict(client_state: Any) -> dict[str, Any]:
    if not isinstance(client_state, Mapping):
        raise CheckpointError(f"client_state must be a dict, got {type(client_state).__name__}; give {{'name': value}}")
    return dict(client_state)


def precision(parts: Parts) -> Any:
    """The configuration's name of the training dtype."""
    return next(name for name, dtype in DTYPES.items() if dtype == parts.config.dtype)


def parameter_entries(parts: Parts) -> dict[str, ParameterEntry]:
    """Each parameter, in the model's order."""
    strides = {slot.parameter: slot.stride for state in parts.states for slot in state.unit.slots}
    trained = {slot.parameter for state in parts.states if state.unit.trainable for slot in state.unit.slots}
    return {
        name: ParameterEntry(
            shape=tuple(each.shape),
            stride=strides[each] if each in strides else dense_stride(each),
            trained=each in trained,  # a client may have frozen it since the engine was built
        )
        for name, each in parts.module.named_parameters()
    }


def parameter_aliases(module: nn.Module) -> dict[str, str]:
    """The other names of tied parameters, each with the name that comes first."""
    return other_names(module.named_parameters(remove_duplicate=False))


def aliases(module: nn.Module) -> dict[str, str]:
    """Those of tied parameters, and of buffers that several modules have."""
    return parameter_aliases(module) | buffer_aliases(module)


def buffer_entry(buffer: Tensor) -> BufferEntry:
    """A buffer's entry."""
    return BufferEntry(shape=tuple(buffer.shape), dtype=str(buffer.dtype))


def group_members(parts: Parts) -> list[tuple[str, ...]]:
    """The names of each group's parameters, in the group's order.

    Raises:
        CheckpointError: the model has lost a parameter since the engine was built, as with a layer that was deleted.
    """
    names: dict[nn.Parameter, str] = {each: name for name, each in parts.module.named_parameters()}
    for slot in parts.stepper.layout.trainable:
        if slot.parameter not in names:
            raise CheckpointError(
                f"the engine trains parameter {slot.name!r}, which the model does not have any more, as of a layer "
                "that was deleted or replaced; put it back before a checkpoint is saved or loaded"
            )
    return [tuple(names[each] for each in group["params"]) for group in parts.optimizer.param_groups]


def rule_name(parts: Parts) -> str:
    """The name of the optimizer's rule."""
    return str(parts.optimizer.rule.name)


def _optimizer(parts: Parts) -> OptimizerEntry:
    groups = zip(parts.optimizer.param_groups, group_members(parts), strict=True)
    return OptimizerEntry(
        rule=rule_name(parts),
        states=parts.optimizer.state_names,
        groups=tuple(
            GroupEntry(parameters=names, options=_options(group, f"param_groups[{index}]"))
            for index, (group, names) in enumerate(groups)
        ),
        steps={slot.name: parts.stepper.steps[slot.index] for slot in parts.stepper.layout.trainable},
    )


def _options(group: dict[str, Any], where: str) -> dict[str, Any]:
    """The hyperparameters; a tensor of one element (torch allows it for lr) is saved as its number."""
    plain = {key: value.item() if isinstance(value, Tensor) else value for key, value in group.items()}
    return {key: encode(value, f"{where}[{key!r}]") for key, value in plain.items() if key != "params"}


def _schedule(scheduler: Any) -> ScheduleEntry | None:
    if scheduler is None:
        return None
    return ScheduleEntry(type=type(scheduler).__name__, state=encode(scheduler.state_dict(), "the schedule's state"))


def restore_counters(parts: Parts, saved: Contents) -> None:
    """Set the counters; the engine is then at the beginning of a step.

    If the accumulation is another one, each step before counts as one with all of this engine's micro-steps.
    """
    parts.global_steps, parts.skipped_steps = saved.global_steps, saved.skipped_steps
    alike = saved.gradient_accumulation_steps == parts.accumulation.steps
    parts.accumulation.restart(saved.global_steps, saved.micro_steps if alike else None)


def restore_optimizer(parts: Parts, saved: Contents) -> None:
    """Set hyperparameters, step counts and the loss scaler."""
    for group, entry in zip(parts.optimizer.param_groups, saved.optimizer.groups, strict=True):
        for key, value in decode(entry.options).items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            else:
                group[key] = value
    for slot in parts.stepper.layout.trainable:
        parts.stepper.steps[slot.index] = saved.optimizer.steps.get(slot.name, parts.stepper.steps[slot.index])
    parts.scaler.restore(**saved.loss_scaler.model_dump())


def restore_schedule(parts: Parts, saved: Contents) -> None:
    """Set the schedule's state, if there is a schedule."""
    if saved.lr_scheduler is not None:
        parts.lr_scheduler.load_state_dict(decode(saved.lr_scheduler.state))
