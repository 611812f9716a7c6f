"""The values, groups and step counts of a checkpoint of DeepSpeed's: one form for the layouts of all stages.

- Stage 0: an optimizer of torch over whole parameters, numbered in the order of their groups; the file has no names.
- Stages 1 and 2: each group is one flat tensor, cut into a part for each rank.
- Stage 3: each parameter is cut into a part for each rank; a sub-group's parts on a rank follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.checkpoint.pieces import MASTER
from zerobench.engine.errors import CheckpointError
from zerobench.engine.rules.client import options_of

#: 1-dimensional tensors whose elements follow each other.
Pieces = list[Tensor]
#: Shapes by name, in order.
Shapes = Mapping[str, Sequence[int]]


@dataclass
class Trained:
    """The trained parameters: their values by ``kind.name`` in row-major order, their groups, their step counts."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, Pieces] = field(default_factory=dict)
    groups: list[tuple[list[str], dict[str, Any]]] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, shape: Sequence[int], values: Mapping[str, Pieces], step: int | None) -> None:
        """Add a parameter with its values by kind; a ``step`` of None is not known."""
        self.shapes[name] = tuple(shape)
        self.values |= {f"{kind}.{name}": pieces for kind, pieces in values.items()}
        if step is not None:
            self.steps[name] = step


def of_ranks(shapes: Sequence[Shapes], ranks: Sequence[dict[str, Any]]) -> Trained | None:
    """From each rank's optimizer state; None at stage 0, where the ranks have no states of their own."""
    if not ranks:
        return None
    of_stage = of_parameter_parts if "fp32_flat_groups" in ranks[0] else of_flat_groups
    return of_stage(shapes, ranks)


def of_flat_groups(shapes: Sequence[Shapes], ranks: Sequence[dict[str, Any]]) -> Trained:
    """Of stages 1 and 2, from the groups' shapes and each rank's optimizer state."""
    found = Trained()
    for group, members in enumerate(shapes):
        base = [rank["base_optimizer_state"] for rank in ranks]
        states = [_state(each, group) for each in base]
        options = base[0]["param_groups"][group] if isinstance(base[0], dict) else {}
        flat = _flat([rank["single_partition_of_fp32_groups"][group] for rank in ranks], states)
        paddings = ranks[0].get("param_alignment_paddings")
        offset, step = 0, step_of(states[0], options)
        for index, (name, shape) in enumerate(members.items()):
            end = offset + torch.Size(shape).numel()
            found.add(name, shape, {kind: narrow(each, offset, end, name) for kind, each in flat.items()}, step)
            offset = end + (paddings[group][index] if paddings else 0)
        found.groups.append((list(members), options_of(options)))
    return found


def _state(base: Any, group: int) -> dict[str, Any]:
    """A group's optimizer state; a list is of the elastic format."""
    if isinstance(base, list):
        return dict(base[group])
    return dict(base["state"].get(base["param_groups"][group]["params"][0], {}))


def _flat(masters: Pieces, states: Sequence[Mapping[str, Any]]) -> dict[str, Pieces]:
    """The ranks' masters and optimizer states by kind; a state that a rank does not have is left out."""
    kinds = [kind for kind, value in states[0].items() if isinstance(value, Tensor) and value.dim() == 1]
    return {MASTER: masters, **{kind: [each[kind] for each in states] for kind in kinds}}


def of_parameter_parts(shapes: Sequence[Shapes], ranks: Sequence[dict[str, Any]]) -> Trained:
    """Of stage 3, from the sub-groups' shapes and each rank's optimizer state."""
    found = Trained()
    inner = [rank["optimizer_state_dict"] for rank in ranks]
    for options in inner[0]["param_groups"]:
        names: list[str] = []
        for index in options["params"]:
            states = [each["state"].get(index, {}) for each in inner]
            flat = _flat([rank["fp32_flat_groups"][index] for rank in ranks], states)
            offset, step = 0, step_of(states[0], options)
            for name, shape in shapes[index].items():
                part = -(-torch.Size(shape).numel() // len(ranks))
                values = {
                    kind: _joined(each, offset, part, torch.Size(shape).numel(), name) for kind, each in flat.items()
                }
                found.add(name, shape, values, step)
                offset += part
            names += shapes[index]
        found.groups.append((names, options_of(options)))
    return found


def _joined(parts: Pieces, offset: int, part: int, elements: int, name: str) -> Pieces:
    """A parameter's parts on all ranks, without the padding at their end."""
    pieces = [piece for each in parts for piece in narrow([each], offset, offset + part, name)]
    return narrow(pieces, 0, elements, name)


def of_whole(optimizer: dict[str, Any], model: Mapping[str, Tensor], members: Sequence[Sequence[str]]) -> Trained:
    """Of stage 0, from the optimizer's state, the model's parameters and the names of each group's."""
    found = Trained()
    inner = optimizer.get("optimizer_state_dict", optimizer)
    saved = [len(group["params"]) for group in inner["param_groups"]]
    if "fp32_groups_flat" in optimizer:
        return _of_flat_whole(optimizer, model, members)
    if saved != [len(names) for names in members]:
        raise CheckpointError(
            f"the checkpoint's optimizer has groups of {saved} parameters, and the engine's has groups of "
            f"{[len(names) for names in members]}; a checkpoint of DeepSpeed's stage 0 has no names, so the groups "
            "must be the same"
        )
    for group, names in enumerate(members):
        options = inner["param_groups"][group]
        for index, name in enumerate(names):
            state = inner["state"].get(options["params"][index], {})
            masters = optimizer["fp32_groups"][group] if "fp32_groups" in optimizer else None
            master = model[name] if masters is None else masters[index]
            found.add(name, master.shape, _whole(master, state), step_of(state, options))
        found.groups.append((list(names), options_of(options)))
    return found


def _whole(master: Tensor, state: Mapping[str, Any]) -> dict[str, Pieces]:
    kinds = [kind for kind, value in state.items() if isinstance(value, Tensor) and value.shape == master.shape]
    whole = {MASTER: master, **{kind: state[kind] for kind in kinds if kind != "step"}}
    return {kind: [each.detach().reshape(-1)] for kind, each in whole.items()}


def _of_flat_whole(optimizer: dict[str, Any], model: Mapping[str, Tensor], members: Sequence[Sequence[str]]) -> Trained:
    """Of stage 0 in 16 bits with DeepSpeed's fused optimizers: a flat tensor for each group, on every rank."""
    shapes = [{name: model[name].shape for name in names} for names in members]
    one = {
        "base_optimizer_state": optimizer["optimizer_state_dict"],
        "single_partition_of_fp32_groups": optimizer["fp32_groups_flat"],
    }
    return of_flat_groups(shapes, [one])


def step_of(state: Mapping[str, Any], options: Mapping[str, Any]) -> int | None:
    """The step count, which fused optimizers keep with the group's options."""
    step = state.get("step", options.get("step"))
    return None if step is None else int(step)


def narrow(pieces: Pieces, start: int, stop: int, name: str) -> Pieces:
    """The elements [start, stop), as views.

    Raises:
        CheckpointError: there are fewer.
    """
    found = list(_narrowed(pieces, start, stop))
    if sum(each.numel() for each in found) != stop - start:
        raise CheckpointError(
            f"the checkpoint's files end before the values of {name!r}; it is damaged, or it was saved with offload to "
            "NVMe, whose files are not read here"
        )
    return found


def _narrowed(pieces: Pieces, start: int, stop: int) -> Iterator[Tensor]:
    at = 0
    for piece in pieces:
        lo, hi = max(start - at, 0), min(stop - at, piece.numel())
        if lo < hi:
            yield piece.detach()[lo:hi]
        at += piece.numel()
