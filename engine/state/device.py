"""Stores in the device's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done, Handle
from zerobench.engine.ops.sumsq import chunk_sumsq
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.portion import Portion
from zerobench.engine.state.stores import OptimizerStore, ParameterStore, UpdateSlice, cut


class DeviceParameterStore(ParameterStore):
    """The shard on the device: in its own memory, or as a part of the whole unit.

    Args:
        shard: [unit.shard].
        stepped: the parameters over the extent: the shard, or the whole unit.
        copies: copies values from the host.
    """

    def __init__(self, shard: Tensor, stepped: Tensor, copies: Copies) -> None:
        self._shard, self._stepped, self._copies = shard, stepped, copies

    def load(self) -> Tensor:
        return self._shard

    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        return None if host else self._stepped[start:stop]

    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        memory = self._stepped[start : start + values.numel()]
        if host:
            return self._copies.up(values, memory)
        if memory.data_ptr() != values.data_ptr():
            memory.copy_(values)
        return Done()

    def memory(self) -> Tensor | None:
        return self._shard


@dataclass(frozen=True, eq=False)
class _Kept:
    """The states of one unit; ``own_gradient`` is over the shard, and the others are over the extent.

    ``states`` has the master, and then the optimizer states in their order.
    """

    parameters: ParameterStore
    gradient: Tensor
    own_gradient: Tensor
    states: dict[str, Tensor]


class DeviceOptimizerStore(OptimizerStore):
    """Gradient sum, master and optimizer states on the device.

    The sum stays in the accumulator. If there is no master copy, the master is the parameter's own memory. A sub-group
    is a slice of the tensors.

    Args:
        names: the optimizer states.
        sub_group: the number of elements in one update.
    """

    def __init__(self, names: Sequence[str], sub_group: int) -> None:
        super().__init__(names)
        self.sub_group = sub_group
        self._units: dict[Portion, _Kept] = {}

    def adopt(self, portion: Portion, parameters: ParameterStore, master: Tensor, gradient: Tensor) -> None:
        own = portion.owned(gradient)
        summed = own if portion.extent == portion.own else gradient
        states = {"master": master, **{name: torch.zeros_like(master) for name in self.names}}
        self._units[portion] = _Kept(parameters, summed, own, states)

    def take(self, portion: Portion, start: int, stop: int, total: Tensor) -> None:
        """Do nothing: the sum is already in its final memory."""

    def sums(self, portion: Portion) -> Tensor:
        gradient = self._units[portion].own_gradient
        return chunk_sumsq(gradient, portion.unit.chunk)

    def update_slices(self, portion: Portion) -> Iterator[UpdateSlice]:
        kept = self._units[portion]
        for start, stop in cut(kept.gradient.numel(), self.sub_group):
            here = slice(start, stop)
            master, *optimizer = (tensor[here] for tensor in kept.states.values())
            memory = kept.parameters.view(start, stop, host=False) if portion.has_master_copy else None
            sent = None
            if portion.has_master_copy and memory is None:
                sent = torch.empty(stop - start, dtype=portion.dtype, device=portion.device)
            parameter = memory if sent is None else sent
            yield UpdateSlice(start, stop, kept.gradient[here], master, optimizer, parameter)
            if sent is not None:
                kept.parameters.accept(start, sent, host=False)

    def read(self, portion: Portion, name: str, start: int, stop: int) -> Tensor:
        kept = self._units[portion]
        values = kept.own_gradient if name == "gradient" else kept.states[name]
        return values[start:stop].clone()

    def write(self, portion: Portion, name: str, start: int, values: Tensor) -> None:
        self._units[portion].states[name][start : start + values.numel()].copy_(values)

    def replace(self, portion: Portion, name: str, memory: Tensor) -> bool:
        shared = name == "master" and not portion.has_master_copy
        if portion.device.type != "cpu" or shared:
            return False
        self._units[portion].states[name] = memory
        return True

    def memory(self, portion: Portion) -> dict[str, Tensor]:
        return dict(self._units[portion].states)
