"""Places and homes: where a rank keeps what it owns. Here, in the device's own memory; engine/offload has the others.

The rest of the engine asks a unit's place for windows to update and its home for the shard to gather, and never where
they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from zerobench.engine.ops.sumsq import chunk_sumsq

if TYPE_CHECKING:
    from zerobench.engine.state.unit import UnitState


class Handle(Protocol):
    """Work under way."""

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            OffloadError: it failed.
        """


@dataclass(frozen=True)
class Window:
    """A sub-group of one unit, open for the update: its tensors hold elements [start, stop) of the unit's extent.

    All of them lie on one device, and that is where the update runs.
    """

    start: int
    stop: int
    gradient: Tensor  # the sum over all leaves
    master: Tensor  # fp32
    optimizer: Sequence[Tensor]  # fp32, in the order of the optimizer's state names
    parameter: Tensor | None  # takes the master rounded to the training dtype; None where the master itself serves

    def part(self, start: int, stop: int) -> Window:
        """The elements [start, stop) of the extent, which must be in the window."""
        here = slice(start - self.start, stop - self.start)
        states = [tensor[here] for tensor in self.optimizer]
        parameter = None if self.parameter is None else self.parameter[here]
        return Window(start, stop, self.gradient[here], self.master[here], states, parameter)

    def follow(self, start: int, stop: int) -> None:
        """Elements [start, stop) of the extent are not updated: their parameters are their masters, rounded."""
        part = self.part(start, stop)
        if part.parameter is not None:
            part.parameter.copy_(part.master)


class Home(ABC):
    """Where a rank keeps its own part of one unit's parameters; positions count from the start of the unit's extent."""

    def prefetch(self) -> None:
        """The shard will be asked for soon."""

    @abstractmethod
    def load(self) -> Tensor:
        """The shard, [unit.shard] on the device."""

    @abstractmethod
    def view(self, start: int, stop: int, *, host: bool) -> Tensor | None:
        """The parameters' own memory of [start, stop), to write new values to, if it is on that side."""

    @abstractmethod
    def accept(self, start: int, values: Tensor, *, host: bool) -> Handle:
        """Take new values, which lie on that side, from ``start`` on; what is waited for is that they were read.

        The values of one step come in order and without gaps.
        """


class Place(ABC):
    """Where a rank keeps gradient sum, master and optimizer states of the units that it steps."""

    @abstractmethod
    def adopt(self, state: UnitState, names: Sequence[str]) -> None:
        """Take over the unit's master, and start the optimizer states of these names at zero."""

    @abstractmethod
    def take(self, state: UnitState, start: int, stop: int, total: Tensor) -> None:
        """Elements [start, stop) of this rank's shard have their final gradient sum for this step: ``total``."""

    @abstractmethod
    def sums(self, state: UnitState) -> Tensor:
        """The sums of squares of the gradient's chunks that this rank owns, fp64, on the device; asked once a step."""

    @abstractmethod
    def windows(self, state: UnitState) -> Iterator[Window]:
        """The unit's sub-groups in order, each to be updated before the next is asked for."""

    @abstractmethod
    def read(self, state: UnitState, name: str) -> Tensor:
        """``gradient`` (of the shard), ``master`` or an optimizer state (of the extent) on the device; not to write."""

    @abstractmethod
    def write_master(self, state: UnitState, values: Tensor) -> None:
        """Replace the master by ``values``, fp32 on the device, over the extent."""

    def host(self) -> dict[str, list[Tensor]]:
        """The host memory that it uses, by what it is for."""
        return {}

    def files(self) -> dict[str, int]:
        """Bytes in files, likewise."""
        return {}


class DevicePlace(Place):
    """Everything stays in UnitState's own tensors; a sub-group is a part of them."""

    def __init__(self, sub_group: int) -> None:
        self.sub_group = sub_group

    def adopt(self, state: UnitState, names: Sequence[str]) -> None:
        state.optimizer = {name: torch.zeros_like(state.master) for name in names}

    def take(self, state: UnitState, start: int, stop: int, total: Tensor) -> None:
        """The sum was made where it is kept."""

    def sums(self, state: UnitState) -> Tensor:
        state.clear_padding(state.own_gradient, 0)
        return chunk_sumsq(state.own_gradient, state.unit.chunk)

    def windows(self, state: UnitState) -> Iterator[Window]:
        gradient = state.own_gradient if state.extent == state.own else state.gradient
        for start, stop in cut(gradient.numel(), self.sub_group):
            here = slice(start, stop)
            states = [tensor[here] for tensor in state.optimizer.values()]
            memory = state.home.view(start, stop, host=False) if state.has_master_copy else None
            sent = None
            if state.has_master_copy and memory is None:
                sent = torch.empty(stop - start, dtype=state.dtype, device=gradient.device)
            parameter = memory if sent is None else sent
            yield Window(start, stop, gradient[here], state.master[here], states, parameter)
            if sent is not None:
                state.home.accept(start, sent, host=False)

    def read(self, state: UnitState, name: str) -> Tensor:
        if name == "gradient":
            return state.own_gradient
        return state.master if name == "master" else state.optimizer[name]

    def write_master(self, state: UnitState, values: Tensor) -> None:
        if values.data_ptr() != state.master.data_ptr():
            state.master.copy_(values)


def cut(elements: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of ``size`` elements, the last one shorter, that ``elements`` fall into."""
    for start in range(0, elements, size):
        yield start, min(start + size, elements)
