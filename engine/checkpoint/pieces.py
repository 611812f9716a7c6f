"""Pieces: the values that this rank saves, and the ranges of values that it wants, by key.

A key is ``kind.name``. Parameters are flat and in the order of their memory (see Slot), so that each rank's part of a
parameter is one range, for every cut of the flat space:

- ``master.NAME`` and each optimizer state, such as ``exp_avg.NAME``: fp32, of trainable parameters. The parameter
  itself is not saved: it is the master, rounded.
- ``frozen.NAME``: in the dtype that the engine keeps.
- ``buffer.RANK.NAME`` and ``rng.RANK.NAME``: each rank's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.rng import rng_states
from zerobench.engine.layout import dense_stride
from zerobench.engine.state.unit import UnitState

MASTER, FROZEN = "master", "frozen"


@dataclass(frozen=True)
class Range:
    """``length`` elements of the tensor ``key`` from ``offset`` on; ``elements`` is the length of the whole tensor."""

    key: str
    offset: int
    length: int
    elements: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.length * self.dtype.itemsize


@dataclass(frozen=True)
class Piece:
    """A range that this rank saves.

    ``values`` returns its values, 1-dimensional on the CPU. Those of a ``live`` piece may be training's own memory, and
    others are a copy.
    """

    range: Range
    values: Callable[[], Tensor]
    live: bool = True


def owned_pieces(parts: Parts, *, frozen: bool) -> list[Piece]:
    """What this rank saves, in the order of the file: wide dtypes first, so that all values are aligned.

    The ranks' pieces together cover every tensor once.

    Args:
        parts: the engine.
        frozen: whether to save frozen parameters.
    """
    found: list[Piece] = []
    reader = _Reader()
    for state in parts.states:
        if state.unit.trainable:
            for kind in (MASTER, *parts.optimizer.state_names):
                found += _of_unit(state, kind, reader)
        elif frozen:
            found += _of_unit(state, FROZEN, reader)
    if frozen:
        for name, parameter in replicated(parts).items():
            found += _part(name, parameter, parts)
    found += [_whole(f"buffer.{parts.ranks.rank}.{name}", each) for name, each in buffers(parts.module).items()]
    found += [_whole(f"rng.{parts.ranks.rank}.{name}", each) for name, each in rng_states(parts.device).items()]
    wanted = [piece for piece in found if piece.range.length]
    return sorted(wanted, key=lambda piece: -piece.range.dtype.itemsize)


def unit_ranges(state: UnitState, kind: str, within: slice) -> Iterator[Range]:
    """The ranges of the tensors of ``kind`` that lie in ``within`` of the unit."""
    dtype = state.dtype if kind == FROZEN else torch.float32
    for slot, lo, hi in state.unit.pieces(within.start, within.stop):
        yield Range(f"{kind}.{slot.name}", lo - slot.start, hi - lo, slot.numel, dtype)


class _Reader:
    """Reads this rank's shards of units, and keeps the last one: its pieces are requested one after another."""

    def __init__(self) -> None:
        self._last: tuple[UnitState, str, Tensor] | None = None

    def shard(self, state: UnitState, kind: str) -> Tensor:
        """The unit's values of ``kind`` that this rank owns, [unit.shard] on the CPU."""
        if self._last is None or self._last[:2] != (state, kind):
            self._last = None  # frees its memory first
            self._last = state, kind, _shard(state, kind).cpu()
        return self._last[2]


def _shard(state: UnitState, kind: str) -> Tensor:
    if kind == FROZEN:
        return state.parameter_store.load()
    start = state.own.start - state.extent.start
    memory = state.optimizer_store.memory(state.portion)
    if kind in memory:
        return memory[kind][start : start + state.unit.shard]
    return state.optimizer_store.read(state.portion, kind, start, start + state.unit.shard)


def _is_live(state: UnitState, kind: str) -> bool:
    """Whether :func:`_shard`, on the CPU, may be training's own memory."""
    if kind == FROZEN:
        return True
    kept = state.optimizer_store.memory(state.portion).get(kind)
    return kept is not None and kept.is_cpu


def _of_unit(state: UnitState, kind: str, reader: _Reader) -> Iterator[Piece]:
    found = zip(state.unit.pieces(state.own.start, state.own.stop), unit_ranges(state, kind, state.own), strict=True)
    live = _is_live(state, kind)
    for (_, lo, hi), each in found:
        here = slice(lo - state.own.start, hi - state.own.start)
        yield Piece(each, lambda here=here: reader.shard(state, kind)[here], live)  # type: ignore[misc]


def replicated(parts: Parts) -> dict[str, nn.Parameter]:
    """The frozen parameters that are in no unit, which every rank keeps whole."""
    placed = {slot.parameter for state in parts.states for slot in state.unit.slots}
    return {name: each for name, each in parts.module.named_parameters() if each not in placed}


def in_memory_order(parameter: Tensor) -> Tensor:
    """The elements of a parameter, 1-dimensional, in the order of its memory; a view if it has no gaps."""
    stride = dense_stride(parameter)
    if parameter.stride() == stride:
        return parameter.detach().as_strided((parameter.numel(),), (1,))
    flat = parameter.new_empty(parameter.numel())
    flat.as_strided(parameter.size(), stride).copy_(parameter.detach())
    return flat


def _part(name: str, parameter: Tensor, parts: Parts) -> Iterator[Piece]:
    """This rank's part of a tensor that every rank has whole."""
    elements, world = parameter.numel(), parts.ranks.world
    width = -(-elements // world)
    start = min(parts.ranks.rank * width, elements)
    stop = min(start + width, elements)
    each = Range(f"{FROZEN}.{name}", start, stop - start, elements, parameter.dtype)
    yield Piece(each, in_memory_order(parameter)[start:stop].cpu)


def _whole(key: str, tensor: Tensor) -> Piece:
    each = Range(key, 0, tensor.numel(), tensor.numel(), tensor.dtype)
    return Piece(each, lambda: tensor.detach().reshape(-1).cpu())


def buffers(module: nn.Module) -> dict[str, Tensor]:
    """The persistent buffers by name: those in the module's state_dict, each under its first name there."""
    others = buffer_aliases(module)
    return {name: each for name, each in _named_buffers(module) if name not in others}


def buffer_aliases(module: nn.Module) -> dict[str, str]:
    """The other names of buffers that several modules have, each with the name that comes first."""
    return other_names(_named_buffers(module))


def other_names(named: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """The names of tensors that have had one before, each with that name."""
    first: dict[int, str] = {}
    seen = [(name, first.setdefault(id(each), name)) for name, each in named]
    return {name: before for name, before in seen if name != before}


def _named_buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The persistent buffers under all their names."""
    return [
        (f"{prefix}.{name}" if prefix else name, buffer)
        for prefix, each in module.named_modules(remove_duplicate=False)
        for name, buffer in each._buffers.items()
        if buffer is not None and name not in each._non_persistent_buffers_set
    ]
