"""Homes in memory: a unit's shard of the parameters on the device, or on the host and up for each gather."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.stores import Handle, Home
from zerobench.engine.state.unit import UnitState


class DeviceHome(Home):
    """The parameters where UnitState put them: a shard of its own, or a part of the whole unit."""

    def __init__(self, state: UnitState, copies: Copies) -> None:
        self._state, self._copies = state, copies

    def load(self) -> Tensor:
        return self._state.shard

    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        return None if host else self._memory[start:stop]

    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        memory = self._memory[start : start + values.numel()]
        if host:
            return self._copies.up(values, memory)
        if memory.data_ptr() != values.data_ptr():
            memory.copy_(values)
        return Done()

    @property
    def _memory(self) -> Tensor:
        return self._state.shard if self._state.extent == self._state.own else self._state.full


class HostHome(Home):
    """The shard in host memory; what was prefetched waits on the device until it is loaded."""

    def __init__(self, state: UnitState, copies: Copies) -> None:
        self._copies, self._device = copies, state.full.device
        shard = copies.memory(state.unit.shard, state.dtype)
        copies.down(state.shard, shard).wait()
        state.shard = self._shard = shard
        self._coming: tuple[Tensor, Handle] | None = None

    def prefetch(self) -> None:
        if self._coming is None:
            self._coming = self._upload()

    def load(self) -> Tensor:
        shard, arrives = self._coming or self._upload()
        self._coming = None
        self._copies.join(arrives)
        return shard

    def _upload(self) -> tuple[Tensor, Handle]:
        shard = torch.empty(self._shard.numel(), dtype=self._shard.dtype, device=self._device)
        return shard, self._copies.up(self._shard, shard)

    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        self._coming = None  # it would be the value from before
        return self._shard[start:stop] if host else None

    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        self._coming = None
        target = self._shard[start : start + values.numel()]
        if host:
            target.copy_(values)
            return Done()
        return self._copies.down(values, target)
