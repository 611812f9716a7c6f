"""The flat space: the position of every element of every parameter, and its owner.

Parameters are grouped in *units*. If parameters are sharded, the engine gathers a unit as a whole, and a unit is
usually one block of the model. Otherwise a unit is a run of neighbouring blocks that are reduced together. Inside its
unit each parameter starts on a grid of *chunks* (``chunk`` elements, a power of two). So a parameter's chunks, and the
partial sums of the gradient norm, depend on the model alone, never on the world size or the stage.

Ownership is cut along the same grid: rank r owns elements ``[r * shard, (r + 1) * shard)`` of each unit; ``shard`` is
the unit's length over the world size, rounded up to whole chunks. The last rank's part may extend past the unit's end.
The elements there, and between a parameter's end and the next chunk, are padding: ranks send it, but no result ever
depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Slot:
    """One parameter in its unit: elements ``[start, start + numel)``; ``start`` is on the chunk grid."""

    name: str
    parameter: nn.Parameter
    index: int  # among the trainable parameters in the model's own order; -1 if it is frozen
    start: int
    numel: int

    def view(self, flat: Tensor, offset: int = 0) -> Tensor:
        """This parameter's elements in ``flat`` (the whole unit), with the parameter's shape and strides."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + offset + self.start)

    def within(self, part: slice) -> tuple[int, int]:
        """This parameter's elements in ``part`` of the unit, as [lo, hi) of the unit; lo equals hi if it has none."""
        end = self.start + self.numel
        lo = min(max(part.start, self.start), end)
        return lo, max(lo, min(part.stop, end))

    def replaced(self, flat: Tensor) -> bool:
        """Whether the parameter is no view of its elements in ``flat`` (the whole unit): a caller has set its data."""
        own, begin = self.parameter, flat.data_ptr() + self.start * flat.element_size()
        elsewhere = self.numel > 0 and (own.data_ptr() != begin or own.stride() != self.stride)
        return elsewhere or own.shape != self.shape

    @cached_property
    def shape(self) -> torch.Size:
        """The parameter's shape when it was laid out."""
        return self.parameter.shape

    @cached_property
    def stride(self) -> tuple[int, ...]:
        """The parameter's strides in its unit."""
        return dense_stride(self.parameter)


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together; lengths in elements, ``shard`` of them owned by each rank."""

    index: int
    name: str
    module: nn.Module
    slots: tuple[Slot, ...]
    trainable: bool
    persistent: bool  # whole on every rank even if parameters are sharded
    length: int
    shard: int
    world: int
    chunk: int

    @cached_property
    def padded(self) -> int:
        """The length of the unit with the padding that makes all shards equal."""
        return self.shard * self.world

    def buckets(self, elements: int) -> Iterator[tuple[int, int]]:
        """Cut every rank's shard into the same ranges of whole chunks; a bucket is one range in all ranks' shards.

        A bucket has at most ``elements`` elements, but at least one chunk of each rank.
        """
        width = max(1, elements // (self.world * self.chunk)) * self.chunk
        for start in range(0, self.shard, width):
            yield start, min(start + width, self.shard)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[Slot, int, int]]:
        """The parts of parameters inside ``[start, stop)`` of the unit, as (slot, start, stop), without padding."""
        for slot in self.slots:
            lo, hi = slot.within(slice(start, stop))
            if lo < hi:
                yield slot, lo, hi

    def padding(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of ``[start, stop)`` that belong to no parameter, relative to ``start``."""
        gaps, position = [], start
        for _, lo, hi in self.pieces(start, stop):
            if position < lo:
                gaps.append((position - start, lo - start))
            position = hi
        if position < stop:
            gaps.append((position - start, stop - start))
        return gaps


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return torch.empty(shape, device="meta").stride()


def dense_stride(parameter: Tensor) -> tuple[int, ...]:
    """The parameter's own strides if its elements fill their memory without gaps, else contiguous ones."""
    order = sorted(range(parameter.dim()), key=parameter.stride)
    expected = 1
    for d in order:
        if parameter.size(d) != 1:
            if parameter.stride(d) != expected:
                return row_major(parameter.size())
            expected *= parameter.size(d)
    return parameter.stride()


@dataclass(frozen=True)
class Group:
    """Parameters that share units: the direct parameters of a module, or those of a whole block."""

    name: str
    module: nn.Module
    parameters: tuple[tuple[str, nn.Parameter], ...]

    @property
    def trained(self) -> int:
        """The number of elements of its trainable parameters."""
        return sum(parameter.numel() for _, parameter in self.parameters if parameter.requires_grad)


def neighbours(sizes: Sequence[int], elements: int) -> list[int]:
    """The boundaries of batches of neighbours, from 0 on: each has at most ``elements``, or one member."""
    ends, total = [0], 0
    for position, size in enumerate(sizes):
        if position and total + size > elements:
            ends.append(position)
            total = 0
        total += size
    return [*ends, len(sizes)]


def together(groups: list[Group], elements: int) -> list[Group]:
    """Merge neighbouring groups of up to ``elements`` trainable elements, from the model's end on.

    Backward begins there. So the remaining, often small, group is reduced last, when no computation overlaps with it.
    """
    order = groups[::-1]
    ends = neighbours([group.trained for group in order], elements)
    batches = [order[start:stop][::-1] for start, stop in pairwise(ends) if start < stop]
    return [
        Group(first.name, first.module, first.parameters + tuple(p for group in rest for p in group.parameters))
        for first, *rest in reversed(batches)
    ]


def blocks(model: nn.Module) -> list[Group]:
    """Cut the model into groups, in the model's own order, from its structure alone.

    A child of the outermost ``ModuleList``, ``ModuleDict`` or ``Sequential`` is a block and one group. Outside all
    blocks, the direct parameters of each module are a group. A tied parameter is in the first group that has it.
    """
    seen: set[nn.Parameter] = set()
    groups: list[Group] = []

    def add(name: str, module: nn.Module, recurse: bool) -> None:
        prefix = name + "." if name else ""
        own = [(prefix + n, p) for n, p in module.named_parameters(recurse=recurse) if p not in seen]
        seen.update(p for _, p in own)
        if own:
            groups.append(Group(name, module, tuple(own)))

    def walk(name: str, module: nn.Module) -> None:
        add(name, module, recurse=False)
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                add(path, child, recurse=True)
            else:
                walk(path, child)

    walk("", model)
    return groups


@dataclass(frozen=True)
class Layout:
    """All units of a model for one world size; see the module's docstring."""

    chunk: int
    world: int
    units: tuple[Unit, ...]
    trainable: tuple[Slot, ...]  # in the model's own order

    @classmethod
    def of(
        cls,
        model: nn.Module,
        *,
        world: int,
        chunk: int,
        merge: int,
        shard_frozen: bool,
        persistence: int,
        trains: bool = True,
    ) -> Layout:
        """Lay out ``model`` for ``world`` ranks.

        Args:
            model: its parameters with ``requires_grad`` form the trainable units.
            world: the number of ranks that share the states.
            chunk: elements; a power of two.
            merge: neighbouring blocks form one unit of up to this many trainable elements; 0 merges none.
            shard_frozen: also make units of frozen parameters; otherwise they stay as they are.
            persistence: trainable parameters with fewer elements go to one persistent unit.
            trains: if False, all parameters are laid out as frozen ones.
        """
        trained = [p for p in model.parameters() if p.requires_grad] if trains else []
        order = {p: i for i, p in enumerate(trained)}
        builder = _Builder(order, world, chunk)
        kept: list[tuple[str, nn.Parameter]] = []
        groups = blocks(model)
        for group in together(groups, merge) if merge else groups:
            small = [(n, p) for n, p in group.parameters if p in order and p.numel() < persistence]
            kept += small
            rest = [(n, p) for n, p in group.parameters if not (p in order and p.numel() < persistence)]
            builder.add(group.name, group.module, [(n, p) for n, p in rest if p in order])
            if shard_frozen:
                weights = [(n, p) for n, p in rest if p not in order and p.is_floating_point()]
                builder.add(group.name, group.module, weights)
        builder.add("(persistent)", model, kept, persistent=True)
        slots = {slot.index: slot for unit in builder.units for slot in unit.slots if unit.trainable}
        return cls(chunk, world, tuple(builder.units), tuple(slots[i] for i in range(len(slots))))

    @property
    def trainable_units(self) -> tuple[Unit, ...]:
        """The units that have gradients and optimizer state."""
        return tuple(unit for unit in self.units if unit.trainable)

    @property
    def owned_chunks(self) -> int:
        """Chunks of trainable units that each rank owns, padding included."""
        return sum(unit.shard for unit in self.trainable_units) // self.chunk

    def chunk_order(self) -> Tensor:
        """The position of each chunk's partial sum after an all-gather of all ranks' partial sums.

        Returns int64 indices into the concatenation over ranks of ``owned_chunks`` values, listing the chunks of the
        trainable parameters in the model's own order: the order in which the norm is folded.
        """
        base: dict[int, int] = {}
        total = 0
        for unit in self.trainable_units:
            base[unit.index] = total
            total += unit.shard // self.chunk
        home = {slot.index: unit for unit in self.trainable_units for slot in unit.slots}
        indices = []
        for slot in self.trainable:
            unit = home[slot.index]
            per_rank = unit.shard // self.chunk
            first = slot.start // self.chunk
            for j in range(first, first + -(-slot.numel // self.chunk)):
                rank, within = divmod(j, per_rank)
                indices.append(rank * total + base[unit.index] + within)
        return torch.tensor(indices, dtype=torch.int64)


class _Builder:
    """Collects units during the layout of a model."""

    def __init__(self, order: dict[nn.Parameter, int], world: int, chunk: int) -> None:
        self.order, self.world, self.chunk = order, world, chunk
        self.units: list[Unit] = []

    def add(
        self, name: str, module: nn.Module, members: Sequence[tuple[str, nn.Parameter]], persistent: bool = False
    ) -> None:
        """Append the unit of ``members`` (all trainable or all frozen), if there are any."""
        if not members:
            return
        slots, start = [], 0
        for parameter_name, parameter in members:
            slots.append(Slot(parameter_name, parameter, self.order.get(parameter, -1), start, parameter.numel()))
            start += -(-parameter.numel() // self.chunk) * self.chunk
        shard = -(-start // (self.chunk * self.world)) * self.chunk
        trainable = slots[0].index >= 0
        self.units.append(
            Unit(
                len(self.units), name, module, tuple(slots), trainable, persistent, start, shard, self.world, self.chunk
            )
        )
