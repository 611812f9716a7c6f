"""Matching: whether a checkpoint fits the engine, and which of its values go where."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import FROZEN, MASTER, Range, buffers, replicated, unit_ranges
from zerobench.engine.checkpoint.progress import buffer_entry, group_members, parameter_entries, precision, rule_name
from zerobench.engine.checkpoint.record import Contents
from zerobench.engine.checkpoint.safetensors import DTYPES
from zerobench.engine.checkpoint.source import Source
from zerobench.engine.errors import CheckpointError


@dataclass(frozen=True)
class Choice:
    """What to load: always parameters and buffers; ``strict`` demands those of the model, no more and no fewer."""

    strict: bool
    optimizer: bool
    schedule: bool
    module_only: bool


#: What to do if the elements of a parameter have another order in memory.
_ANOTHER_FORMAT = (
    "; give the model the memory format of the saved one before initialize(), as by "
    "model.to(memory_format=torch.channels_last)"
)


@dataclass(frozen=True)
class Want:
    """A range of a tensor of the checkpoint, and the key of the engine's state that it becomes."""

    into: str
    source: Range


def check(parts: Parts, saved: Contents, choice: Choice) -> None:
    """Check that the chosen parts of a checkpoint fit the engine.

    Raises:
        CheckpointError: they do not; the message names the first difference.
    """
    own = parameter_entries(parts)
    _check_names("parameter", saved.parameters, own, choice.strict)
    _check_names("buffer", saved.buffers, buffers(parts.module), choice.strict)
    for name, entry in saved.parameters.items():
        if name in own:
            _check_equal(f"parameter {name!r}", "shape", entry.shape, own[name].shape)
            _check_equal(f"parameter {name!r}", "stride", entry.stride, own[name].stride, _ANOTHER_FORMAT)
    for name, buffer in buffers(parts.module).items():
        if name in saved.buffers:
            _check_equal(f"buffer {name!r}", "shape and dtype", saved.buffers[name], buffer_entry(buffer))
    if not choice.module_only:
        _check_equal("the model", "dtype", saved.dtype, precision(parts), "; load_module_only=True converts")
    if choice.optimizer:
        _check_optimizer(parts, saved, choice)
    if choice.schedule:
        _check_schedule(parts, saved)


def _check_names(kind: str, saved: Collection[str], own: Mapping[str, Any], strict: bool) -> None:
    if not strict:
        return
    for given, other, whose in ((own, saved, "the checkpoint"), (saved, own, "the model")):
        for name in given:
            if name not in other:
                near = difflib.get_close_matches(name, [each for each in other if each not in given], n=1)
                hint = f" (nearest: {near[0]!r})" if near else ""
                raise CheckpointError(
                    f"{whose} has no {kind} {name!r}{hint}; load it into the model that was saved, or pass "
                    "load_module_strict=False to load the names that both have"
                )


def _check_equal(what: str, attribute: str, saved: Any, own: Any, hint: str = "") -> None:
    if saved != own:
        raise CheckpointError(f"{what} has the {attribute} {saved} in the checkpoint and {own} in the engine{hint}")


def _check_optimizer(parts: Parts, saved: Contents, choice: Choice) -> None:
    hint = "; pass load_optimizer_states=False to load the parameters alone"
    _check_equal("the optimizer", "rule", saved.optimizer.rule, rule_name(parts), hint)
    _check_equal("the optimizer", "states", saved.optimizer.states, parts.optimizer.state_names, hint)
    groups = [set(group.parameters) for group in saved.optimizer.groups]
    own = [set(members) for members in group_members(parts)]
    if not choice.strict:
        known = saved.parameters.keys() & parameter_entries(parts).keys()
        groups, own = ([members & known for members in each] for each in (groups, own))
    _check_equal("the optimizer", "number of parameter groups", len(groups), len(own), hint)
    for index, (first, second) in enumerate(zip(groups, own, strict=True)):
        for name in sorted(first ^ second):
            whose = "checkpoint" if name in first else "engine"
            raise CheckpointError(f"parameter {name!r} is in group {index} of the {whose} only{hint}")


def _check_schedule(parts: Parts, saved: Contents) -> None:
    hint = "; pass load_lr_scheduler_states=False to leave the schedule as it is"
    kind = None if saved.lr_scheduler is None else saved.lr_scheduler.type
    own = None if parts.lr_scheduler is None else type(parts.lr_scheduler).__name__
    _check_equal("the engine", "lr_scheduler", kind, own, hint)
    if saved.lr_scheduler is not None:
        keys = sorted(parts.lr_scheduler.state_dict())
        _check_equal("the schedule", "state", sorted(saved.lr_scheduler.state), keys, hint)


def wants(parts: Parts, source: Source, choice: Choice) -> list[Want]:
    """The ranges that this rank loads.

    Raises:
        CheckpointError: the checkpoint has no such tensor, or one of another size.
    """
    saved = source.contents
    found = [each for each in _wanted(parts, saved, choice) if each.source.length]
    found = [want for want in found if _has_values(want, saved)]
    return [_checked(want, source) for want in found]


def _wanted(parts: Parts, saved: Contents, choice: Choice) -> list[Want]:
    ranges: list[Range] = []
    kinds = (MASTER, *parts.optimizer.state_names) if choice.optimizer else (MASTER,)
    for state in parts.states:
        for kind in kinds if state.unit.trainable else (FROZEN,):
            ranges += unit_ranges(state, kind, state.extent if state.unit.trainable else state.own)
    for name, each in replicated(parts).items():
        ranges.append(Range(f"{FROZEN}.{name}", 0, each.numel(), each.numel(), each.dtype))
    found = [Want(each.key, _source(each, saved)) for each in ranges]
    rank = parts.ranks.rank % saved.world
    for name, buffer in buffers(parts.module).items():
        whole = Range(f"buffer.{rank}.{name}", 0, buffer.numel(), buffer.numel(), buffer.dtype)
        found.append(Want(f"buffer.{name}", whole))
    return found


def _source(each: Range, saved: Contents) -> Range:
    """The range in the checkpoint: of the master if the parameter trained there, whether it trains now or not."""
    kind, name = each.key.split(".", 1)
    entry = saved.parameters.get(name)
    if entry is not None and kind in (MASTER, FROZEN):
        return replace(each, key=f"{MASTER if entry.trained else FROZEN}.{name}")
    return each


def _has_values(want: Want, saved: Contents) -> bool:
    """Whether the checkpoint has the tensor by intent: its name, and its frozen parameters."""
    kind, name = want.source.key.split(".", 1)
    if kind == "buffer":
        return name.split(".", 1)[1] in saved.buffers
    return name in saved.parameters and (kind != FROZEN or saved.frozen)


def _checked(want: Want, source: Source) -> Want:
    entry = source.tensors.get(want.source.key)
    if entry is None or entry.elements != want.source.elements:
        given = "is missing" if entry is None else f"has {entry.elements} elements"
        raise CheckpointError(
            f"the checkpoint's tensor {want.source.key!r} {given}; the engine needs {want.source.elements} elements"
        )
    return Want(want.into, replace(want.source, dtype=DTYPES[entry.dtype]))
