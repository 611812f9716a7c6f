"""States in host memory: gradient sums come down as they are made, the CPU steps, parameters go up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done
from zerobench.engine.ops.sumsq import chunk_sumsq
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.stores import Handle, Place, Window, cut
from zerobench.engine.state.unit import UnitState


class Offloaded(Place):
    """What places off the device have in common: the sums leave the device as soon as they are final.

    A sum travels in ``arriving``, in which it loses nothing: the accumulator's dtype, or a narrower one in which the
    only contribution to it travelled. Its squares are added up on the device before.
    """

    def __init__(self, copies: Copies, arriving: torch.dtype) -> None:
        self.copies, self.arriving = copies, arriving
        self._sums: dict[UnitState, Tensor] = {}

    def take(self, state: UnitState, start: int, stop: int, total: Tensor) -> None:
        chunk = state.unit.chunk
        state.clear_padding(total, start)
        if state not in self._sums:
            self._sums[state] = self._no_sums(state)
        self._sums[state][start // chunk : stop // chunk] = chunk_sumsq(total, chunk)
        self._keep(state, start, stop, total.to(self.arriving))

    def sums(self, state: UnitState) -> Tensor:
        self.copies.join()  # from now on what the sums were made in may be written to
        sums = self._sums.pop(state, None)
        return self._no_sums(state) if sums is None else sums

    def _no_sums(self, state: UnitState) -> Tensor:
        return torch.zeros(state.unit.shard // state.unit.chunk, dtype=torch.float64, device=state.full.device)

    @abstractmethod
    def _keep(self, state: UnitState, start: int, stop: int, values: Tensor) -> None:
        """Bring ``values``, elements [start, stop) of the shard's gradient sum, where they are kept."""


class HostPlace(Offloaded):
    """Gradient sum, master and optimizer states of each unit in host memory of their own.

    In the 16-bit dtypes what goes up is rounded into one of two buffers of a sub-group each: while one of them is on
    its way the CPU fills the other.
    """

    def __init__(
        self, copies: Copies, arriving: torch.dtype, *, sub_group: int, staging: int, dtype: torch.dtype
    ) -> None:
        super().__init__(copies, arriving)
        self.sub_group = sub_group
        self.staging = [copies.memory(staging, dtype) for _ in range(2)] if dtype != torch.float32 else []
        self._leaving: list[Handle] = [Done(), Done()]
        self.gradient: dict[UnitState, Tensor] = {}
        self._arrived: dict[UnitState, Handle] = {}

    def adopt(self, state: UnitState, names: Sequence[str]) -> None:
        elements = state.unit.shard
        self.gradient[state] = self.copies.memory(elements, self.arriving)
        master = self.copies.memory(elements, torch.float32)
        self.copies.down(state.master, master).wait()
        state.master = master
        state.optimizer = {name: self.copies.memory(elements, torch.float32) for name in names}

    def _keep(self, state: UnitState, start: int, stop: int, values: Tensor) -> None:
        self._arrived[state] = self.copies.down(values, self.gradient[state][start:stop])

    def windows(self, state: UnitState) -> Iterator[Window]:
        if state in self._arrived:
            self._arrived.pop(state).wait()
        for start, stop in cut(state.unit.shard, self.sub_group):
            here = slice(start, stop)
            parameter = state.home.view(start, stop, host=True)
            leaves = parameter is None
            if parameter is None and self.staging:
                self.staging.reverse()
                self._leaving.reverse()
                self._leaving[0].wait()
                parameter = self.staging[0][: stop - start]
            states = [tensor[here] for tensor in state.optimizer.values()]
            yield Window(start, stop, self.gradient[state][here], state.master[here], states, parameter)
            if leaves:
                values = state.master[here] if parameter is None else parameter
                self._leaving[0] = state.home.accept(start, values, host=True)
        self.copies.join()

    def read(self, state: UnitState, name: str) -> Tensor:
        if name == "gradient":
            if state in self._arrived:
                self._arrived[state].wait()
            kept = self.gradient[state]
        else:
            kept = state.master if name == "master" else state.optimizer[name]
        return kept.to(state.full.device)

    def write_master(self, state: UnitState, values: Tensor) -> None:
        state.master.copy_(values)

    def host(self) -> dict[str, list[Tensor]]:
        states = list(self.gradient)
        return {
            "gradients": list(self.gradient.values()),
            "optimizer": [tensor for state in states for tensor in (state.master, *state.optimizer.values())],
            "buffers": self.staging,
        }
