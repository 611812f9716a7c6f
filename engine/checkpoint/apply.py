"""Apply: loaded values become the state of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import FROZEN, MASTER, buffers, replicated
from zerobench.engine.comm.shards import gather_shards
from zerobench.engine.layout import Slot, dense_stride
from zerobench.engine.ops.packing import pack
from zerobench.engine.state.stores import UpdateSlice
from zerobench.engine.state.unit import UnitState


@dataclass(frozen=True)
class Values:
    """The elements of a tensor from ``offset`` on, 1-dimensional on the CPU."""

    offset: int
    tensor: Tensor

    def part(self, slot: Slot, lo: int, hi: int) -> Tensor:
        """The values of elements [lo, hi) of the parameter's unit."""
        start = lo - slot.start - self.offset
        return self.tensor[start : start + hi - lo]


def set_states(parts: Parts, loaded: Mapping[str, Values]) -> None:
    """Set masters, optimizer states, parameters and buffers, those that ``loaded`` has by key. A collective."""
    arriving = []
    for state in parts.states:
        if state.unit.trainable:
            _fill(state, parts.optimizer.state_names, loaded)
            arriving += _gather(parts, state)
        else:
            _fill_frozen(state, loaded)
    for name, parameter in replicated(parts).items():
        if f"{FROZEN}.{name}" in loaded:
            values = loaded[f"{FROZEN}.{name}"].tensor
            parameter.data.copy_(values.as_strided(parameter.size(), dense_stride(parameter)))
    for name, buffer in buffers(parts.module).items():
        if f"buffer.{name}" in loaded:
            buffer.data.copy_(loaded[f"buffer.{name}"].tensor.view(buffer.shape))
    for work in arriving:
        work.wait()
    parts.stores.settle()
    if parts.unsharder is not None:
        parts.unsharder.reshard_all()
    parts.read_cache.clear()


def _fill(state: UnitState, names: Sequence[str], loaded: Mapping[str, Values]) -> None:
    """Set the unit's states as a step would: the store opens its slices, and the parameter follows the master."""
    for window in state.optimizer_store.update_slices(state.portion):
        for kind, tensor in zip((MASTER, *names), (window.master, *window.optimizer), strict=True):
            _fill_slice(state, window, loaded, kind, tensor)
        window.follow(window.start, window.stop)


def _fill_slice(state: UnitState, window: UpdateSlice, loaded: Mapping[str, Values], kind: str, tensor: Tensor) -> None:
    start = state.extent.start + window.start
    wanted = list(state.unit.pieces(start, state.extent.start + window.stop))
    found = [(loaded.get(f"{kind}.{slot.name}"), slot, lo, hi) for slot, lo, hi in wanted]
    places = {lo - start: values.part(slot, lo, hi) for values, slot, lo, hi in found if values is not None}
    alike = all((each.dtype, each.device) == (tensor.dtype, tensor.device) for each in places.values())
    if alike and len(places) == len(wanted):
        pack(tensor, list(places.values()), list(places))  # faster; it changes the padding too
        return
    for at, each in places.items():
        tensor[at : at + each.numel()].copy_(each)


def _gather(parts: Parts, state: UnitState) -> list[Any]:
    """Start all-gathering the unit's parameters if every rank keeps them and only owners have set them."""
    if state.sharded or state.extent != state.own or parts.ranks.world == 1:
        return []
    own = state.parameter_store.load()
    return gather_shards(state.unit, state.full, own, parts.ranks, parts.config.zero_optimization.allgather_bucket_size)


def _fill_frozen(state: UnitState, loaded: Mapping[str, Values]) -> None:
    with state.parameter_store.edit() as shard:
        for slot, lo, hi in state.unit.pieces(state.own.start, state.own.stop):
            values = loaded.get(f"{FROZEN}.{slot.name}")
            if values is not None:
                shard[lo - state.own.start : hi - state.own.start].copy_(values.part(slot, lo, hi))
