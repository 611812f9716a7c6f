"""Stores in host memory: gradient sums are copied to the host, the CPU steps, parameters are copied back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zerobench.engine.comm.collectives import Done, Handle
from zerobench.engine.ops.sumsq import chunk_sumsq
from zerobench.engine.state.copies import Copies
from zerobench.engine.state.portion import Portion
from zerobench.engine.state.stores import OptimizerStore, ParameterStore, UpdateSlice, cut


class HostParameterStore(ParameterStore):
    """The shard in host memory; a prefetched copy stays on the device until it is loaded.

    Args:
        portion: the unit.
        shard: its initial values, [unit.shard] on the device; the store copies them.
        copies: copies between device and host.
    """

    def __init__(self, portion: Portion, shard: Tensor, copies: Copies) -> None:
        self._copies, self._device = copies, portion.device
        self._shard = copies.memory(portion.unit.shard, portion.dtype)
        self._written = copies.down(shard, self._shard)
        self._written.wait()
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
        return shard, self._copies.up(self._shard, shard, self._written)

    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        self._coming = None  # its value is old
        return self._shard[start:stop] if host else None

    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        self._coming = None
        target = self._shard[start : start + values.numel()]
        if host:
            target.copy_(values)
            return Done()
        self._written = self._copies.down(values, target)
        return self._written

    def memory(self) -> Tensor | None:
        return self._shard


class OffloadedOptimizerStore(OptimizerStore):
    """The base class of the stores off the device: copies each sum from the device as soon as it is final.

    A sum is copied in ``arriving``, in which it is exact: the accumulator's dtype, or the narrower wire dtype if there
    is only one contribution. Before the copy the device computes its sum of squares.
    """

    def __init__(self, names: Sequence[str], copies: Copies, arriving: torch.dtype) -> None:
        super().__init__(names)
        self.copies, self.arriving = copies, arriving
        self._sums: dict[Portion, Tensor] = {}

    def take(self, portion: Portion, start: int, stop: int, total: Tensor) -> None:
        self._square(portion, start, total)
        self._keep(portion, start, stop, self.rounded(total))

    def retake(self, portion: Portion, start: int, total: Tensor) -> None:
        self._square(portion, start, total)
        self.write(portion, "gradient", start, self.rounded(total))

    def rounded(self, total: Tensor) -> Tensor:
        return total.to(self.arriving)

    def _square(self, portion: Portion, start: int, total: Tensor) -> None:
        chunk = portion.unit.chunk
        if portion not in self._sums:
            self._sums[portion] = _no_sums(portion)
        self._sums[portion][start // chunk : (start + total.numel()) // chunk] = chunk_sumsq(total, chunk)

    def sums(self, portion: Portion) -> Tensor:
        self.copies.join()  # the memory of the sums may now be reused
        sums = self._sums.pop(portion, None)
        return _no_sums(portion) if sums is None else sums

    @abstractmethod
    def _keep(self, portion: Portion, start: int, stop: int, values: Tensor) -> None:
        """Store ``values``, elements [start, stop) of the shard's gradient sum."""


def _no_sums(portion: Portion) -> Tensor:
    return torch.zeros(portion.unit.shard // portion.unit.chunk, dtype=torch.float64, device=portion.device)


@dataclass(frozen=True, eq=False)
class _Kept:
    """The states of one unit over its shard, in host memory: the master, and then the optimizer's in their order."""

    parameters: ParameterStore
    gradient: Tensor
    states: dict[str, Tensor]


class HostOptimizerStore(OffloadedOptimizerStore):
    """Gradient sum, master and optimizer states of each unit in their own host memory.

    In the 16-bit dtypes an update rounds the parameters of a sub-group into one of two buffers. While one buffer is
    copied to the device, the CPU fills the other.
    """

    def __init__(
        self,
        names: Sequence[str],
        copies: Copies,
        arriving: torch.dtype,
        *,
        sub_group: int,
        staging: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(names, copies, arriving)
        self.sub_group = sub_group
        self.staging = [copies.memory(staging, dtype) for _ in range(2)] if dtype != torch.float32 else []
        self._leaving: list[Handle] = [Done(), Done()]
        self._units: dict[Portion, _Kept] = {}
        self._arrived: dict[Portion, Handle] = {}

    def adopt(self, portion: Portion, parameters: ParameterStore, master: Tensor, gradient: Tensor) -> None:
        elements = portion.unit.shard
        summed = self.copies.memory(elements, self.arriving)
        kept = self.copies.memory(elements, torch.float32)
        self.copies.down(master, kept).wait()
        states = {name: self.copies.memory(elements, torch.float32) for name in self.names}
        self._units[portion] = _Kept(parameters, summed, {"master": kept, **states})

    def _keep(self, portion: Portion, start: int, stop: int, values: Tensor) -> None:
        self._arrived[portion] = self.copies.down(values, self._units[portion].gradient[start:stop])

    def update_slices(self, portion: Portion) -> Iterator[UpdateSlice]:
        kept = self._units[portion]
        if portion in self._arrived:
            self._arrived.pop(portion).wait()
        for start, stop in cut(portion.unit.shard, self.sub_group):
            here = slice(start, stop)
            parameter = kept.parameters.view(start, stop, host=True)
            leaves = parameter is None
            if parameter is None and self.staging:
                parameter = self._free_staging()[: stop - start]
            master, *optimizer = (tensor[here] for tensor in kept.states.values())
            yield UpdateSlice(start, stop, kept.gradient[here], master, optimizer, parameter)
            if leaves:
                values = master if parameter is None else parameter
                self._leaving[0] = kept.parameters.accept(start, values, host=True)
        self.copies.join()

    def _free_staging(self) -> Tensor:
        """Wait for the copy of the buffer used before the last one, and return this buffer."""
        self.staging.reverse()
        self._leaving.reverse()
        self._leaving[0].wait()
        return self.staging[0]

    def read(self, portion: Portion, name: str, start: int, stop: int) -> Tensor:
        return self._state(portion, name)[start:stop].to(portion.device, copy=True)

    def write(self, portion: Portion, name: str, start: int, values: Tensor) -> None:
        self._state(portion, name)[start : start + values.numel()].copy_(values)

    def _state(self, portion: Portion, name: str) -> Tensor:
        kept = self._units[portion]
        if name != "gradient":
            return kept.states[name]
        if portion in self._arrived:
            self._arrived[portion].wait()
        return kept.gradient

    def replace(self, portion: Portion, name: str, memory: Tensor) -> bool:
        if self.copies.pinned:
            return False
        self._units[portion].states[name] = memory
        return True

    def memory(self, portion: Portion) -> dict[str, Tensor]:
        return dict(self._units[portion].states)

    def host(self) -> dict[str, list[Tensor]]:
        return {
            "gradients": [kept.gradient for kept in self._units.values()],
            "optimizer": [tensor for portion in self._units for tensor in self.memory(portion).values()],
            "buffers": self.staging,
        }
