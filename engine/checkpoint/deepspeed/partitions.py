"""Partitions: each rank's part of the trained parameters in DeepSpeed's layout, from a checkpoint of our own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerobench.engine.checkpoint.deepspeed.pickles import Fragment
from zerobench.engine.checkpoint.deepspeed.settings import Settings
from zerobench.engine.checkpoint.pieces import MASTER
from zerobench.engine.checkpoint.plain import decode
from zerobench.engine.checkpoint.values import StoredValues
from zerobench.engine.errors import CheckpointError

#: A flat group's length is a multiple of so many elements for each rank.
_ALIGNMENT = 2
#: The rules that count steps, and the options that torch's and DeepSpeed's optimizers expect besides the engine's.
_COUNTING = ("Adam", "Adagrad")
_OPTIONS: dict[str, dict[str, Any]] = {
    "Adam": {"amsgrad": False, "bias_correction": True},
    "Sgd": {"dampening": 0.0, "nesterov": False},
}


@dataclass(frozen=True)
class Partitions:
    """A checkpoint's masters and optimizer states, cut as DeepSpeed cuts them for the ranks of ``settings``."""

    values: StoredValues
    settings: Settings

    @property
    def groups(self) -> list[list[str]]:
        """Each group's parameters that have elements; DeepSpeed's groups have no others."""
        return [[name for name in group.parameters if self.elements(name)] for group in self._optimizer.groups]

    @property
    def _optimizer(self) -> Any:
        return self.values.record.contents.optimizer

    def elements(self, name: str) -> int:
        """The number of a parameter's elements."""
        return torch.Size(self.values.record.contents.parameters[name].shape).numel()

    def options(self, group: int, members: Sequence[int]) -> dict[str, Any]:
        """A group of the optimizer's state, with the numbers of its tensors."""
        options = decode(self._optimizer.groups[group].options)
        return {**_OPTIONS.get(self._optimizer.rule, {}), **options, "params": list(members)}

    def _state(self, tensors: dict[str, Tensor], names: Sequence[str]) -> dict[str, Any]:
        """The optimizer's state of one tensor of DeepSpeed's, which has one step count for all its parameters."""
        if self._optimizer.rule not in _COUNTING:
            return dict(tensors)
        steps = {self._optimizer.steps[name]: name for name in names}
        if len(steps) > 1:
            first, last = (steps[count] for count in (min(steps), max(steps)))
            raise CheckpointError(
                f"{first!r} has taken {min(steps)} steps and {last!r} {max(steps)}, and DeepSpeed has one count for "
                "them at this stage; stage 0 has one for each parameter"
            )
        return {"step": next(iter(steps)), **tensors}

    def flat(self, rank: int) -> dict[str, Any]:
        """A rank's part of each flat group, for stages 1 and 2."""
        state: dict[int, Any] = {}
        masters, paddings, mappings = [], [], []
        for group, names in enumerate(self.groups):
            total = sum(map(self.elements, names))
            part = -(-total // (_ALIGNMENT * self.settings.world)) * _ALIGNMENT
            lo, hi = rank * part, (rank + 1) * part
            padding = min(max(hi - total, 0), part)
            masters.append(self._between(MASTER, names, lo, hi)[: part - padding])
            state[group] = self._state({kind: self._between(kind, names, lo, hi) for kind in self._kinds}, names)
            paddings.append(padding)
            mappings.append(OrderedDict(self._fragments(names, lo, hi)))
        return {
            "base_optimizer_state": {
                "state": state,
                "param_groups": [self.options(group, [group]) for group in range(len(masters))],
            },
            "single_partition_of_fp32_groups": masters,
            "group_paddings": paddings,
            "param_alignment_paddings": [[0] * len(names) for names in self.groups],
            "partition_count": [self.settings.world] * len(masters),
            "param_slice_mappings": mappings,
        }

    @property
    def _kinds(self) -> tuple[str, ...]:
        states: tuple[str, ...] = self._optimizer.states
        return states

    def _overlaps(self, names: Sequence[str], lo: int, hi: int) -> Iterator[tuple[str, int, int, int]]:
        """The parts of parameters in [lo, hi) of a flat group: name, first and last element, position in the group."""
        at = 0
        for name in names:
            first, last = max(lo - at, 0), min(hi - at, self.elements(name))
            if first < last:
                yield name, first, last, at + first
            at += self.elements(name)

    def _between(self, kind: str, names: Sequence[str], lo: int, hi: int) -> Tensor:
        """The values [lo, hi) of a flat group, with zeros after its end."""
        found = torch.zeros(hi - lo)
        for name, first, last, at in self._overlaps(names, lo, hi):
            found[at - lo : at - lo + last - first] = self.values.read(f"{kind}.{name}", first, last)
        return found

    def _fragments(self, names: Sequence[str], lo: int, hi: int) -> Iterator[tuple[str, Fragment]]:
        for name, first, last, at in self._overlaps(names, lo, hi):
            yield name, Fragment(numel=last - first, start=at - lo)

    def sub_groups(self) -> list[list[list[str]]]:
        """The sub-groups of each group, for stage 3."""
        return [list(self._sub_groups(names)) for names in self.groups]

    def _sub_groups(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Parameters until their parts have as many elements as a sub-group."""
        found: list[str] = []
        for name in names:
            found.append(name)
            if sum(map(self.part, found)) >= self.settings.sub_group_size:
                yield found
                found = []
        if found:
            yield found

    def part(self, name: str) -> int:
        """The elements of a parameter on a rank, padding included, for stage 3."""
        return -(-self.elements(name) // self.settings.world)

    def by_parameter(self, rank: int) -> dict[str, Any]:
        """A rank's part of each parameter, for stage 3."""
        state: dict[int, Any] = {}
        masters: list[Tensor] = []
        groups = []
        for group, subs in enumerate(self.sub_groups()):
            groups.append(self.options(group, range(len(masters), len(masters) + len(subs))))
            for names in subs:
                tensors = {kind: torch.cat([self.of_rank(kind, name, rank) for name in names]) for kind in self._kinds}
                state[len(masters)] = self._state(tensors, names)
                masters.append(torch.cat([self.of_rank(MASTER, name, rank) for name in names]))
        return {
            "optimizer_state_dict": {"state": state, "param_groups": groups},
            "fp32_flat_groups": masters,
            "partition_count": self.settings.world,
        }

    def of_rank(self, kind: str, name: str, rank: int) -> Tensor:
        """A rank's part of a parameter's values of a kind, with zeros after its end."""
        part, elements = self.part(name), self.elements(name)
        lo, hi = min(rank * part, elements), min((rank + 1) * part, elements)
        values = self.values.read(f"{kind}.{name}", lo, hi)
        return torch.cat([values, values.new_zeros(part - values.numel())])

    def whole(self) -> tuple[dict[str, Any], list[list[Tensor]]]:
        """The state of an optimizer of torch over whole parameters, and the masters by group, for stage 0."""
        state: dict[int, Any] = {}
        groups, masters = [], []
        for group, entry in enumerate(self._optimizer.groups):
            groups.append(self.options(group, range(len(state), len(state) + len(entry.parameters))))
            masters.append([self.values.whole(MASTER, name) for name in entry.parameters])
            for name in entry.parameters:
                state[len(state)] = self._state({kind: self.values.whole(kind, name) for kind in self._kinds}, [name])
        return {"state": state, "param_groups": groups}, masters
