"""Apply: loaded values become the state of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.checkpoint.parts import Parts
from zerobench.engine.checkpoint.pieces import FROZEN, MASTER, buffers, replicated
from zerobench.engine.comm.shards import InFlight
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
    gathers, bucket = InFlight(), parts.config.zero_optimization.allgather_bucket_size
    for state in parts.states:
        if state.unit.trainable:
            _fill(state, parts.optimizer.state_names, loaded)
            gathers.add(state.gather_own(parts.ranks, bucket))
        else:
            _fill_frozen(state, loaded)
    for name, parameter in replicated(parts).items():
        if f"{FROZEN}.{name}" in loaded:
            values = loaded[f"{FROZEN}.{name}"].tensor
            parameter.data.copy_(values.as_strided(parameter.size(), dense_stride(parameter)))
    for name, buffer in buffers(parts.module).items():
        if f"buffer.{name}" in loaded:
            buffer.data.copy_(loaded[f"buffer.{name}"].tensor.view(buffer.shape))
    gathers.finish()
    parts.stores.settle()
    if parts.unsharder is not None:
        parts.unsharder.renew()
    parts.read_cache.clear()


def _fill(state: UnitState, names: Sequence[str], loaded: Mapping[str, Values]) -> None:
    """Set the unit's states: the store keeps the loaded memory, or it opens its slices as in a step.

    The parameter follows the master.
    """
    kinds = (MASTER, *names)
    kept = [kind for kind in kinds if _keep(state, kind, loaded)]
    for window in state.optimizer_store.update_slices(state.portion):
        for kind, tensor in zip(kinds, (window.master, *window.optimizer), strict=True):
            if kind not in kept:
                _fill_slice(state, window, loaded, kind, tensor)
        window.follow(window.start, window.stop)


def _keep(state: UnitState, kind: str, loaded: Mapping[str, Values]) -> bool:
    """Give the store the memory of a state's values if it is laid out as the extent; whether the store keeps it."""
    places, complete = _places(state, kind, 0, state.portion.elements, loaded)
    whole = _whole(places, state.portion.elements) if complete else None
    return whole is not None and state.optimizer_store.replace(state.portion, kind, whole)


def _whole(places: Mapping[int, Tensor], elements: int) -> Tensor | None:
    """The fp32 tensor of which all of them are parts, each at its place; None if there is none."""
    storages = {each.untyped_storage().data_ptr(): each for each in places.values()}
    if len(storages) != 1 or any(each.storage_offset() != at for at, each in places.items()):
        return None
    (part,) = storages.values()
    spans = part.dtype == torch.float32 and part.untyped_storage().nbytes() == elements * part.itemsize
    return part.as_strided((elements,), (1,), 0) if spans else None


def _fill_slice(state: UnitState, window: UpdateSlice, loaded: Mapping[str, Values], kind: str, tensor: Tensor) -> None:
    places, complete = _places(state, kind, window.start, window.stop, loaded)
    alike = all((each.dtype, each.device) == (tensor.dtype, tensor.device) for each in places.values())
    if alike and complete:
        pack(tensor, list(places.values()), list(places))  # faster; it changes the padding too
        return
    for at, each in places.items():
        tensor[at : at + each.numel()].copy_(each)


def _places(
    state: UnitState, kind: str, start: int, stop: int, loaded: Mapping[str, Values]
) -> tuple[dict[int, Tensor], bool]:
    """The loaded values for [start, stop) of the extent, by their first element from ``start`` on; whether all are."""
    first = state.extent.start + start
    wanted = list(state.unit.pieces(first, state.extent.start + stop))
    found = [(loaded.get(f"{kind}.{slot.name}"), slot, lo, hi) for slot, lo, hi in wanted]
    places = {lo - first: values.part(slot, lo, hi) for values, slot, lo, hi in found if values is not None}
    return places, len(places) == len(wanted)


def _fill_frozen(state: UnitState, loaded: Mapping[str, Values]) -> None:
    with state.parameter_store.edit() as shard:
        for slot, lo, hi in state.unit.pieces(state.own.start, state.own.stop):
            values = loaded.get(f"{FROZEN}.{slot.name}")
            if values is not None:
                shard[lo - state.own.start : hi - state.own.start].copy_(values.part(slot, lo, hi))
